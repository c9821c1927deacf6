/* packs.h: packed forms of matrices that don't change, kept beside the storage that they are in.
 *
 * A storage's PACKS start empty. Who runs a product again and again asks kb_packs_steady at each call; once the contents have stayed at
 * one version for two calls, kb_packs_get makes the packed form, and from then on hands it out as long as the version stays. A form lives
 * as long as its storage: after a write it is filled again in place, when the contents have settled again, so no reader can meet freed
 * memory. All forms together stay within KN_PACKED_MB. Any thread may call; one packs, the others go on without.
 *
 * Refused: memory that its owner may write unseen (no version tells), products of other types than f32.
 */
#ifndef KB_PACKS_H
#define KB_PACKS_H
#include "base/gemm.h"

typedef struct kb_pack kb_pack;
typedef struct kb_packs {
    _Atomic(kb_pack *) first;
    _Atomic(uint64_t) version;          /* at the newest call */
    _Atomic(int32_t) calls;             /* that found it unchanged */
} kb_packs;

/* What a program knows of an input's contents. packs NULL: they may be changing. */
typedef struct kb_source { kb_packs *packs; uint64_t version; } kb_source;

/* Counts a call; true once the contents have been the same for two. */
bool kb_packs_steady(kb_packs *p, uint64_t version);
/* Which form of what in the storage. */
typedef struct kb_form { const void *data; int64_t v[6]; } kb_form;

/* The packed form of g's B, which lies in the storage; NULL where there is none (budget, memory, another thread is at it). */
const kb_gemm_packed *kb_packs_get(const kb_source *s, const kb_gemm *g);
/* The same for a form of the caller's own: `floats` of them, made by fill; v[0] is not 0. fill gives false where memory is short. */
const float *kb_packs_form(const kb_source *s, const kb_form *form, int64_t floats, bool (*fill)(void *arg, float *to), void *arg);
int64_t kb_packs_bytes(void);           /* of all packed forms that there are */
void kb_packs_free(kb_packs *p);        /* with its storage: nobody uses it */

#endif
