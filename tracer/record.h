/* record.h: writing a call down (record.c), and what frame.c shares with it. */
#ifndef TR_RECORD_H
#define TR_RECORD_H
#include "tracer/tr.h"

/* Runs the op eagerly and appends its event. When the op fails, or memory for the event is short, recording ends and the rest of the call is eager. */
void tr_record_op(tr_frame *f, const rt_op *c, kn_tensor **out);
/* Appends the event that ends the pending graph. */
void tr_record_end(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n, const char *site, int64_t bytes);

void tr_graph_ended(tr_frame *f, tr_event *e);
void tr_note_write(tr_frame *f, tr_code target, const kn_tensor *x);
uint64_t tr_now(void);
tr_frame *tr_frame_new(tr_module *m, tr_entry *e, rt_ctx *ctx, kn_tensor *const *args, int n);

#endif
