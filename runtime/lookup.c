/* lookup.c: modules and tensors by their dotted path, swapping them, and the path of the call in progress. */
#include "runtime/module.h"
#include <string.h>

static const char *class_name(const kn_module *m) { return m->state->cls->c.name; }

/* ---- looking up ----------------------------------------------------------------------------------------------------------------- */
/* Moves past the end of a path's part at p: the end of the path, or a dot that something follows. */
static bool eat_end(const char **path, const char *p)
{
    if (*p && (*p != '.' || !p[1]))
        return false;
    *path = p + (*p == '.');
    return true;
}

/* If the first part of *path is `name`: moves past it. */
static bool eat(const char **path, const char *name)
{
    size_t n = strlen(name);
    return strncmp(*path, name, n) == 0 && eat_end(path, *path + n);
}

/* A list's index in plain decimal, as names are written: no sign, no leading zero. */
static bool eat_index(const char **path, int64_t n, int64_t *index)
{
    const char *p = *path;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9') || strspn(p, "0123456789") > 18)
        return false;
    *index = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        *index = *index * 10 + (*p - '0');
    return *index < n && eat_end(path, p);
}

/* The field and place that the first part of *path names; *path is moved past it. NULL where there is none. */
static kn_module **child_slot(kn_module *m, const char **path, const kn_field **field)
{
    for (const kn_field *f = m->state->cls->c.fields; f && f->kind != KN_FIELD_END; f++) {
        const char *p = *path;
        int64_t n, index = 0;
        if (f->kind != KN_FIELD_CHILD && f->kind != KN_FIELD_CHILDREN)
            continue;
        kn_module **children = rt_field_children(m, f, &n);
        if (f->kind == KN_FIELD_CHILD ? !eat(&p, f->name) : ((*f->name && !eat(&p, f->name)) || !eat_index(&p, n, &index)))
            continue;
        *path = p;
        *field = f;
        return &children[index];
    }
    return NULL;
}

/* Follows path through children as far as they go: the module there, *path what is left. */
static kn_module *descend(kn_module *m, const char **path)
{
    while (m && m->state && **path) {
        const kn_field *f;
        kn_module *inside = m->state->ops ? m->state->borrowed : m;
        kn_module **slot = inside ? child_slot(inside, path, &f) : NULL;
        if (!slot)
            break;
        m = *slot;
    }
    return m;
}

kn_module *kn_module_child(const kn_module *m, const char *path)
{
    if (!rt_module_resolve(m, "kn_module_child") || !path)
        return NULL;
    const char *rest = path;
    kn_module *found = descend((kn_module *)(uintptr_t)m, &rest);
    if (found && found->state && !*rest)
        return found;
    kb_fail(KN_E_VALUE, "kn_module_child: %s has no child \"%s\"", class_name(m), path);
    return NULL;
}

/* The owner and field of a tensor's path; NULL after a failure. */
static kn_tensor **tensor_slot(const kn_module *m, const char *path, const char *who, const kn_field **field)
{
    kn_module *at = rt_module_resolve(m, who);
    if (!at)
        return NULL;
    const char *rest = path ? path : "";
    at = descend(at, &rest);
    at = at && at->state && at->state->ops ? at->state->borrowed : at;
    for (const kn_field *f = at && at->state ? at->state->cls->c.fields : NULL; f && f->kind != KN_FIELD_END; f++)
        if (rt_is_tensor_field(f) && strcmp(f->name, rest) == 0) {
            *field = f;
            return rt_field_at(at, f->offset);
        }
    kb_fail(KN_E_VALUE, "%s: %s has no parameter or buffer \"%s\"", who, class_name(m), path ? path : "NULL");
    return NULL;
}

kn_tensor *kn_module_tensor(const kn_module *m, const char *path)
{
    const kn_field *f;
    kn_tensor **slot = tensor_slot(m, path, "kn_module_tensor", &f);
    return slot ? *slot : rt_error_tensor(rt_get(), NULL, NULL);
}

kn_status kn_module_set_tensor(kn_module *m, const char *path, kn_tensor *t)
{
    const kn_field *f;
    kn_tensor **slot = tensor_slot(m, path, "kn_module_set_tensor", &f);
    if (!slot)
        return kb_error_status();
    if (t && kn_failed(t))
        return kb_fail(kn_tensor_status(t), "kn_module_set_tensor: \"%s\": %s", path, kn_tensor_error(t));
    kn_assign(slot, t);
    if (t && f->kind == KN_FIELD_PARAM)
        t->flags |= RT_T_PARAM;
    rt_module_changed();
    return KN_OK;
}

static bool is_inside(const kn_module *m, const kn_module *of)
{
    for (; m && m->state; m = m->state->parent)
        if (m == of)
            return true;
    return false;
}

static kn_status put_child(kn_module *m, const char *path, kn_module *child)
{
    const char *rest = path ? path : "";
    kn_module *owner = rt_module_resolve(m, "kn_module_set_child");
    if (!owner)
        return kb_error_status();
    const kn_field *f = NULL;
    kn_module **slot = NULL;
    for (;;) {                                  /* the last part of the path decides the place, all before it the owner */
        slot = *rest ? child_slot(owner, &rest, &f) : NULL;
        if (!slot || !*rest || !*slot || !(*slot)->state)
            break;
        owner = rt_module_resolve(*slot, "kn_module_set_child");
        if (!owner)
            return kb_error_status();
    }
    if (!slot || *rest)
        return kb_fail(KN_E_VALUE, "kn_module_set_child: %s has no child \"%s\"", class_name(m), path ? path : "NULL");
    if (child == *slot)
        return KN_OK;
    if (!child && !(f->kind == KN_FIELD_CHILD && f->extra))
        return kb_fail(KN_E_VALUE, "kn_module_set_child: child \"%s\" of %s can't be left out", path, class_name(m));
    if (child && (!child->state || child->state->parent || is_inside(owner, child)))
        return kb_fail(KN_E_STATE, "kn_module_set_child: the new child \"%s\" already belongs to a module, or is one that holds this place", path);
    if (*slot && (*slot)->state && rt_module_in_call(*slot))
        return kb_fail(KN_E_STATE, "kn_module_set_child: the old child \"%s\" is being called", path);
    char *name = child ? rt_child_name(f, f->kind == KN_FIELD_CHILDREN ? slot - rt_field_children(owner, f, &(int64_t){0}) : -1) : NULL;
    if (child && !name)
        return KN_E_MEMORY;
    kn_module *old = *slot;
    *slot = child;
    if (child) {
        kb_free(child->state->name);
        child->state->name = name;
        child->state->parent = owner;
    }
    if (old && old->state && old->state->parent == owner)
        rt_module_destroy(old);
    rt_module_changed();
    return KN_OK;
}

kn_status kn_module_set_child(kn_module *m, const char *path, kn_module *child)
{
    kn_status s = put_child(m, path, child);
    if (s != KN_OK && child && child->state && !child->state->parent && !(m && m->state && is_inside(m, child)))
        kn_module_free(child);
    return s;
}

/* ---- where a call is ---------------------------------------------------------------------------------------------------------------- */
/* Written from the end backwards: the innermost module's names up to the outermost call's module. */
char *rt_module_path(char *buf, size_t size, const rt_ctx *ctx)
{
    if (!size)
        return buf;
    buf[0] = 0;
    if (!ctx || !ctx->n_modules)
        return buf;
    size_t at = size - 1;
    buf[at] = 0;
    const kn_module *m = ctx->modules[ctx->n_modules - 1].module, *outermost = ctx->modules[0].module;
    for (; m && m->state && m != outermost && m->state->name; m = m->state->parent) {
        size_t n = strlen(m->state->name), dot = buf[at] != 0;
        if (n + dot > at)
            break;
        if (dot)
            buf[--at] = '.';
        memcpy(buf + (at -= n), m->state->name, n);
    }
    memmove(buf, buf + at, size - at);
    return buf;
}
