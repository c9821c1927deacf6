/* record.h: writing a call down (record.c), holding it against what was (replay.c), and what frame.c shares with both. */
#ifndef TR_RECORD_H
#define TR_RECORD_H
#include "tracer/tr.h"

/* replay.c */
void tr_frame_op(rt_trace *trace, rt_ctx *ctx, const rt_op *c, kn_tensor **out);        /* an op called while the frame traces */
/* Whether the call is a recorded child of f->at: then the frame has moved on to it and out is filled. */
bool tr_replay_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out);
/* frame.c: every call that isn't. */
void tr_unusual_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out);

/* Runs the op eagerly and appends its event. When the op fails, or memory for the event is short, recording ends and the rest of the call
 * is eager. */
void tr_record_op(tr_frame *f, const rt_op *c, kn_tensor **out);
/* Appends the event that ends the pending graph. */
void tr_record_end(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n, const char *site, int64_t bytes);

void tr_graph_ended(tr_frame *f, tr_event *e);
void tr_note_write(tr_frame *f, tr_code target, const kn_tensor *x);
uint64_t tr_now(void);
tr_frame *tr_frame_new(tr_module *m, tr_entry *e, rt_ctx *ctx, kn_tensor *const *args, int n);

#endif
