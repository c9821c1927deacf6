/* cells.h: a group as a graph of scalar values ("cells"), between ops and loop IR.
 *
 * A cell is an element value or a row value. Its TIME says after how many rounds of reductions it can be known: a reduction of a value of
 * time t has time t + 1, anything else the latest time of its operands. Kernels run, for t = 0, 1, …: row values of time t, then one pass
 * along the row at time t.
 */
#ifndef CG_CELLS_H
#define CG_CELLS_H
#include "codegen/internal.h"

enum { CG_MAX_CELLS = 1024 };

typedef enum cg_cell_kind { CELL_LOAD, CELL_LOAD_AT /* at an index, an i64 */, CELL_PLACE /* along the row, i64 */, CELL_CONST, CELL_SCALAR,
    CELL_SIZE, CELL_CONVERT, CELL_PRIM, CELL_BODY, CELL_REDUCE } cg_cell_kind;

typedef struct cg_cell {
    uint8_t kind, type;         /* type: LP_PRED or a dtype; of a LOAD and LOAD_AT that of the value in registers (bool: LP_PRED) */
    uint8_t op;                 /* PRIM: lp_op; REDUCE: lp_reduce */
    bool row;
    uint8_t time;
    int16_t in[CG_MAX_OPERANDS], n_in;
    const cg_body *body;
    kn_dtype math;
    double value;               /* CONST */
    int64_t int_value;          /* CONST; SIZE: what is taken off the row's length; PRIM: imm.bits */
    int16_t buffer, scalar;
    int cost;                   /* of this cell alone */
    /* what lower.c finds out */
    uint32_t needed;            /* bit t: in the pass (row cells: anywhere) at time t */
    int16_t spill;              /* buffer that keeps it for later passes, -1 */
    int memo_phase;
    uint32_t memo;
} cg_cell;

typedef struct cg_store { int16_t cell, buffer; bool row; } cg_store;

typedef struct cg_cells {
    const cg_facts *f;
    const cg_group *group;
    cg_space space;
    int n;
    int16_t *of_node;           /* by position in the group: the node's value */
    cg_store stores[CG_MAX_NODES];
    int n_stores;
    cg_access access[CG_MAX_BUFFERS];
    bool read[CG_MAX_BUFFERS], written[CG_MAX_BUFFERS];
    int n_buffers;
    int32_t scalar[32];
    int n_scalars;
    bool full;                  /* a limit was hit */
    cg_cell v[CG_MAX_CELLS];    /* last, and valid up to n: not cleared from group to group */
} cg_cells;

bool cg_cells_build(cg_cells *c, const cg_facts *f, const cg_group *group);
int16_t cg_cell_add(cg_cells *c, cg_cell cell);

#endif
