/* budget.c: how many ways through forward are recorded.
 *
 * A way that needs code of its own is a TRY. After .max_paths of them a new way runs eagerly, and is recorded only after a number of such
 * calls that doubles each
 * time: a module that never stops changing pays for a few recordings in all, and one that settles late is compiled after all. What was
 * recorded stays usable for ever. A way whose graphs all had code already (another number of turns of a loop, the same layers in another
 * order) gives its try back; those have a larger budget.
 *
 * Beside this the number of events of a module is bounded (record.c).
 */
#include "tracer/tr.h"

enum { MAX_LIGHT = 4096, FIRST_WAIT = 256 };
static const uint64_t MAX_WAIT = (uint64_t)1 << 40;

bool tr_may_record(tr_module *m, const char *site)
{
    if (m->tries < (uint64_t)m->options.max_paths && m->light_paths < MAX_LIGHT) {
        m->tries++;
        return true;
    }
    if (!m->wait)
        m->wait = FIRST_WAIT;
    if (m->waited++ < m->wait) {
        tr_module_note(m, BREAK_TOO_MANY_PATHS, site, "more than %d ways through forward needed code of their own", m->options.max_paths);
        return false;
    }
    tr_trace("a new way is recorded after %llu that were not", (unsigned long long)m->wait);
    m->waited = 0;
    m->wait = m->wait < MAX_WAIT ? 2 * m->wait : m->wait;
    m->tries++;
    return true;
}

void tr_path_was_light(tr_module *m)
{
    m->tries -= m->tries > 0;
    m->light_paths++;
}

void tr_budget_reset(tr_module *m) { m->tries = m->wait = m->waited = 0; }
