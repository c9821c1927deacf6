/* session.c: from a module to an object file in memory.
 *
 * A compile has an LLVM context of its own and borrows a target machine; passes, then the object: LLVMRunPasses, EmitToMemoryBuffer. Who
 * asked loads it (codegen/loader.c). Nothing is initialised before the first compile, and ll_shutdown gives everything back; a later
 * compile starts over.
 *
 * Locks: `lock` guards the start, the counter and the pool of target machines. */
#include "codegen/llvm/ll.h"
#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PASSES "function(early-cse,loop-mssa(licm))"

typedef struct machine { LLVMTargetMachineRef tm; ll_isa isa; bool quick; struct machine *next; } machine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static machine *idle;                           /* target machines that no thread uses now */
static uint64_t serial;
static bool targets_ready;

enum { QUICK = 4000 };                          /* instructions from which on the fast code generator is good enough */

/* Records the error's text and consumes it */
static bool failed(LLVMErrorRef error, const char *what)
{
    if (!error)
        return false;
    char text[512], *message = LLVMGetErrorMessage(error);
    snprintf(text, sizeof text, "LLVM, %s: %s", what, message);
    LLVMDisposeErrorMessage(message);
    ll_host->fail(text);
    return true;
}

/* ---- the target ------------------------------------------------------------------------------------------------------------------ */
static ll_isa isa_now(void)
{
    const char *name = ll_host->isa();
    return strcmp(name, "avx512") == 0 ? LL_AVX512 : strcmp(name, "avx2") == 0 ? LL_AVX2 : LL_BASELINE;
}

static LLVMTargetMachineRef new_machine(ll_isa isa, bool quick)
{
    static const char *const cpus[] = {"x86-64", "haswell", NULL}, *const features[] = {"", "+avx2,+fma,+f16c,+bmi,+bmi2", NULL};
    char *triple = LLVMGetDefaultTargetTriple(), *cpu = NULL, *has = NULL, *error = NULL;
    LLVMTargetRef target;
    LLVMTargetMachineRef tm = NULL;
    if (isa != LL_BASELINE)
        has = LLVMGetHostCPUFeatures();
    if (isa == LL_AVX2 && strstr(has, "+avx512f")) {    /* forced below what the processor has: a generic one of that level */
        LLVMDisposeMessage(has);
        has = NULL;
    }
    if (has)
        cpu = LLVMGetHostCPUName();
    if (LLVMGetTargetFromTriple(triple, &target, &error) == 0)
        tm = LLVMCreateTargetMachine(target, triple, cpu ? cpu : cpus[isa], has ? has : features[isa],
            quick ? LLVMCodeGenLevelNone : LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelSmall);
    if (!tm)
        ll_host->fail(error ? error : "LLVM has no target machine for this processor");
    LLVMDisposeMessage(error);
    LLVMDisposeMessage(triple);
    LLVMDisposeMessage(cpu);
    LLVMDisposeMessage(has);
    return tm;
}

static machine *borrow(ll_isa isa, bool quick)
{
    machine *m = NULL;
    pthread_mutex_lock(&lock);
    for (machine **at = &idle; *at && !m; at = &(*at)->next)
        if ((*at)->isa == isa && (*at)->quick == quick) {
            m = *at;
            *at = m->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (m)
        return m;
    m = ll_host->alloc(sizeof *m);
    if (!m)
        return NULL;
    *m = (machine){.tm = new_machine(isa, quick), .isa = isa, .quick = quick};
    if (m->tm)
        return m;
    ll_host->free(m);
    return NULL;
}

static void hand_back(machine *m)
{
    pthread_mutex_lock(&lock);
    m->next = idle;
    idle = m;
    pthread_mutex_unlock(&lock);
}

/* Lock held */
static void start(void)
{
    if (targets_ready)
        return;
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    targets_ready = true;
}

/* ---- one kernel --------------------------------------------------------------------------------------------------------------------- */
static void diagnose(LLVMDiagnosticInfoRef d, void *failed_flag)
{
    if (LLVMGetDiagInfoSeverity(d) != LLVMDSError)
        return;
    char *text = LLVMGetDiagInfoDescription(d);
    ll_host->fail(text);
    LLVMDisposeMessage(text);
    *(bool *)failed_flag = true;
}

static void path_of(char *path, size_t size, const char *dir, const char *symbol, const char *end)
{
    snprintf(path, size, "%s/%s.%s", dir, symbol, end);
}

static void dump_ir(LLVMModuleRef m, const char *dir, const char *symbol, const char *end)
{
    char path[1024], *error = NULL;
    path_of(path, sizeof path, dir, symbol, end);
    LLVMPrintModuleToFile(m, path, &error);
    LLVMDisposeMessage(error);
}

/* Emission changes the module, so the text comes from a copy */
static void dump_assembly(LLVMModuleRef m, LLVMTargetMachineRef tm, const char *dir, const char *symbol)
{
    char path[1024], *error = NULL;
    LLVMModuleRef copy = LLVMCloneModule(m);
    path_of(path, sizeof path, dir, symbol, "s");
    LLVMTargetMachineEmitToFile(tm, copy, path, LLVMAssemblyFile, &error);
    LLVMDisposeMessage(error);
    LLVMDisposeModule(copy);
}

static bool checking(void)
{
#ifdef KB_DEBUG
    return true;
#else
    const char *check = ll_host->env("KN_CHECK");
    return check[0] && strcmp(check, "0") != 0;
#endif
}

static bool verified(LLVMModuleRef m, const char *symbol)
{
    char *message = NULL, text[512];
    bool ok = !checking() || LLVMVerifyModule(m, LLVMReturnStatusAction, &message) == 0;
    if (!ok) {
        snprintf(text, sizeof text, "the LLVM IR of %s is malformed: %s", symbol, message);
        ll_host->fail(text);
    }
    LLVMDisposeMessage(message);
    return ok;
}

static bool optimise(LLVMModuleRef m, LLVMTargetMachineRef tm)
{
    LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
    bool ok = !failed(LLVMRunPasses(m, PASSES, tm, options), "passes");
    LLVMDisposePassBuilderOptions(options);
    return ok;
}

/* The kernel as vector IR in m; e's arrays come from one block */
static bool build(const lp_kernel *k, LLVMContextRef cx, LLVMModuleRef m, ll_isa isa, const char *symbol)
{
    size_t n = (size_t)k->n_insts + 1, buffers = (size_t)k->n_buffers + 1;
    size_t bytes = sizeof(ll_emit) + n * (sizeof(ll_value) + sizeof(uint32_t) + 2 * sizeof(bool))
                   + (LP_MAX_OUTER + 3) * buffers * sizeof(LLVMValueRef) + 64;
    ll_emit *e = ll_host->alloc(bytes);
    if (!e)
        return false;
    memset(e, 0, bytes);
    e->v = (ll_value *)(e + 1);
    e->base = (LLVMValueRef *)(e->v + n);
    e->row = e->base + buffers;
    e->stride = e->row + buffers;
    e->last_use = (uint32_t *)(e->stride + (LP_MAX_OUTER + 1) * buffers);
    e->varies = (bool *)(e->last_use + n);
    e->dead = e->varies + n;
    e->dead = e->varies + n;
    e->k = k, e->isa = isa, e->cx = cx, e->m = m;
    e->b = LLVMCreateBuilderInContext(cx);
    bool ok = ll_emit_kernel(e, symbol);
    if (!ok)
        ll_host->fail(e->why);
    LLVMDisposeBuilder(e->b);
    ll_host->free(e);
    return ok;
}

static LLVMMemoryBufferRef object_of(const lp_kernel *k, bool quick, const char *symbol, const char *dump_dir)
{
    bool bad = false;
    machine *t = borrow(isa_now(), quick || k->n_insts > QUICK);
    if (!t)
        return NULL;
    LLVMContextRef cx = LLVMContextCreate();
    LLVMContextSetDiagnosticHandler(cx, diagnose, &bad);
    LLVMModuleRef m = LLVMModuleCreateWithNameInContext(symbol, cx);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(t->tm);
    char *triple = LLVMGetTargetMachineTriple(t->tm), *error = NULL;
    LLVMSetModuleDataLayout(m, layout);
    LLVMSetTarget(m, triple);
    LLVMDisposeTargetData(layout);
    LLVMDisposeMessage(triple);
    LLVMMemoryBufferRef object = NULL;
    bool ok = build(k, cx, m, t->isa, symbol);
    if (ok && dump_dir)
        dump_ir(m, dump_dir, symbol, "ll");
    ok = ok && verified(m, symbol) && optimise(m, t->tm);
    if (ok && dump_dir) {
        dump_ir(m, dump_dir, symbol, "opt.ll");
        dump_assembly(m, t->tm, dump_dir, symbol);
    }
    if (ok && LLVMTargetMachineEmitToMemoryBuffer(t->tm, m, LLVMObjectFile, &error, &object)) {
        ll_host->fail(error);
        LLVMDisposeMessage(error);
        object = NULL;
    }
    if (object && bad) {
        LLVMDisposeMemoryBuffer(object);
        object = NULL;
    }
    LLVMDisposeModule(m);
    LLVMContextDispose(cx);
    hand_back(t);
    return object;
}

/* Unique in the process; readable in debuggers and dumps */
static void name_symbol(char *symbol, size_t size, const lp_kernel *k, uint64_t number)
{
    int n = snprintf(symbol, size, "%s_%llu", k->name[0] ? k->name : "kernel", (unsigned long long)number);
    for (int i = 0; i < n && symbol[i]; i++) {
        char c = symbol[i];
        if (!(c == '_' || (c >= '0' && c <= '9' && i) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            symbol[i] = '_';
    }
}

void *ll_compile(const lp_kernel *k, bool quick, const char *dump_dir, size_t *bytes)
{
    char symbol[96];
    pthread_mutex_lock(&lock);
    start();
    uint64_t number = serial++;
    pthread_mutex_unlock(&lock);
    name_symbol(symbol, sizeof symbol, k, number);
    LLVMMemoryBufferRef object = object_of(k, quick, symbol, dump_dir);
    if (!object)
        return NULL;
    *bytes = LLVMGetBufferSize(object);
    void *copy = ll_host->alloc(*bytes);
    if (copy)
        memcpy(copy, LLVMGetBufferStart(object), *bytes);
    LLVMDisposeMemoryBuffer(object);
    return copy;
}

void ll_shutdown(void)
{
    while (idle) {
        machine *m = idle;
        idle = m->next;
        LLVMDisposeTargetMachine(m->tm);
        ll_host->free(m);
    }
}
