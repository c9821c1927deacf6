/* session.c: from a module to machine code in this process, and back.
 *
 * A compile has an LLVM context of its own and borrows a target machine; passes, object, link: LLVMRunPasses, EmitToMemoryBuffer, LLJIT
 * with JITLink. All kernels live in one dylib under serial symbol names; a resource tracker a kernel takes it out again. Nothing is
 * initialised before the first compile, and ll_shutdown gives everything back; a later compile starts over.
 *
 * Locks: `lock` guards the session's start, the counters and the pool of target machines. LLJIT takes objects from several threads by
 * itself. */
#include "codegen/llvm/ll.h"
#include <elf.h>
#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/LLJITUtils.h>
#include <llvm-c/Orc.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PASSES "function(early-cse,loop-mssa(licm))"

struct cg_code { LLVMOrcResourceTrackerRef tracker; cg_code *next, *before; };

typedef struct machine { LLVMTargetMachineRef tm; ll_isa isa; bool quick; struct machine *next; } machine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LLVMOrcLLJITRef jit;
static machine *idle;                           /* target machines that no thread uses now */
static uint64_t serial;
static cg_code *live;                           /* every kernel, for shutdown */
static bool targets_ready;

enum { QUICK = 4000 };                          /* instructions from which on the fast code generator is good enough */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

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

static void report(void *context, LLVMErrorRef error)
{
    (void)context;
    failed(error, "linking");
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

/* ---- the session ------------------------------------------------------------------------------------------------------------------ */
static bool define_helpers(void)
{
    LLVMOrcCSymbolMapPair *pairs = ll_host->alloc((size_t)ll_n_helpers * sizeof *pairs);
    if (!pairs)
        return false;
    LLVMJITSymbolFlags flags = {LLVMJITSymbolGenericFlagsExported | LLVMJITSymbolGenericFlagsCallable, 0};
    for (int i = 0; i < ll_n_helpers; i++)
        pairs[i] = (LLVMOrcCSymbolMapPair){LLVMOrcLLJITMangleAndIntern(jit, ll_helpers[i].symbol),
            {(LLVMOrcExecutorAddress)(uintptr_t)ll_helpers[i].address, flags}};
    LLVMOrcMaterializationUnitRef unit = LLVMOrcAbsoluteSymbols(pairs, (size_t)ll_n_helpers);
    ll_host->free(pairs);
    LLVMErrorRef error = LLVMOrcJITDylibDefine(LLVMOrcLLJITGetMainJITDylib(jit), unit);
    if (error)
        LLVMOrcDisposeMaterializationUnit(unit);
    return !failed(error, "library functions");
}

static bool start(void)
{
    if (jit)
        return true;
    if (!targets_ready) {
        LLVMInitializeX86TargetInfo();
        LLVMInitializeX86Target();
        LLVMInitializeX86TargetMC();
        LLVMInitializeX86AsmPrinter();
        targets_ready = true;
    }
    if (failed(LLVMOrcCreateLLJIT(&jit, NULL), "start"))
        return jit = NULL, false;
    LLVMOrcExecutionSessionSetErrorReporter(LLVMOrcLLJITGetExecutionSession(jit), report, NULL);
    return define_helpers();
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
    size_t bytes = sizeof(ll_emit) + n * (sizeof(ll_value) + sizeof(bool)) + (LP_MAX_OUTER + 3) * buffers * sizeof(LLVMValueRef) + 64;
    ll_emit *e = ll_host->alloc(bytes);
    if (!e)
        return false;
    memset(e, 0, bytes);
    e->v = (ll_value *)(e + 1);
    e->base = (LLVMValueRef *)(e->v + n);
    e->row = e->base + buffers;
    e->stride = e->row + buffers;
    e->varies = (bool *)(e->stride + (LP_MAX_OUTER + 1) * buffers);
    e->k = k, e->isa = isa, e->cx = cx, e->m = m;
    e->b = LLVMCreateBuilderInContext(cx);
    bool ok = ll_emit_kernel(e, symbol);
    if (!ok)
        ll_host->fail(e->why);
    LLVMDisposeBuilder(e->b);
    ll_host->free(e);
    return ok;
}

static LLVMMemoryBufferRef object_of(const lp_kernel *k, const char *symbol, const char *dump_dir)
{
    bool bad = false;
    machine *t = borrow(isa_now(), k->n_insts > QUICK);
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

/* Bytes of the object that are loaded */
static size_t loaded_bytes(LLVMMemoryBufferRef object)
{
    const char *at = LLVMGetBufferStart(object);
    Elf64_Ehdr h;
    size_t n = 0;
    memcpy(&h, at, sizeof h);
    for (int i = 0; i < h.e_shnum; i++) {
        Elf64_Shdr s;
        memcpy(&s, at + h.e_shoff + (size_t)i * h.e_shentsize, sizeof s);
        n += s.sh_flags & SHF_ALLOC ? s.sh_size : 0;
    }
    return n;
}

static void remember(cg_code *code)
{
    pthread_mutex_lock(&lock);
    code->next = live;
    code->before = NULL;
    if (live)
        live->before = code;
    live = code;
    pthread_mutex_unlock(&lock);
}

static void unload(cg_code *code)
{
    if (code->tracker) {
        failed(LLVMOrcResourceTrackerRemove(code->tracker), "release");
        LLVMOrcReleaseResourceTracker(code->tracker);
    }
    ll_host->free(code);
}

static cg_code *load(LLVMMemoryBufferRef object, const char *symbol, lp_fn *fn)
{
    LLVMOrcExecutorAddress address = 0;
    cg_code *code = ll_host->alloc(sizeof *code);
    if (!code) {
        LLVMDisposeMemoryBuffer(object);
        return NULL;
    }
    code->tracker = LLVMOrcJITDylibCreateResourceTracker(LLVMOrcLLJITGetMainJITDylib(jit));
    if (!failed(LLVMOrcLLJITAddObjectFileWithRT(jit, code->tracker, object), "loading")
        && !failed(LLVMOrcLLJITLookup(jit, &address, symbol), "looking up a kernel")) {
        *fn = (lp_fn)(uintptr_t)address;
        remember(code);
        return code;
    }
    unload(code);
    return NULL;
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

cg_code *ll_compile(const lp_kernel *k, const char *dump_dir, lp_fn *fn, double *ms, size_t *code_bytes)
{
    double begin = now_ms();
    char symbol[96];
    pthread_mutex_lock(&lock);
    bool ready = start();
    uint64_t number = serial++;
    pthread_mutex_unlock(&lock);
    if (!ready)
        return NULL;
    name_symbol(symbol, sizeof symbol, k, number);
    LLVMMemoryBufferRef object = object_of(k, symbol, dump_dir);
    if (!object)
        return NULL;
    size_t bytes = loaded_bytes(object);
    cg_code *code = load(object, symbol, fn);
    if (code && ms)
        *ms = now_ms() - begin;
    if (code && code_bytes)
        *code_bytes = bytes;
    return code;
}

void ll_release(cg_code *code)
{
    if (!code)
        return;
    pthread_mutex_lock(&lock);
    if (code->next)
        code->next->before = code->before;
    *(code->before ? &code->before->next : &live) = code->next;
    bool tidy = jit && serial % 64 == 0;
    pthread_mutex_unlock(&lock);
    unload(code);
    if (tidy)
        LLVMOrcSymbolStringPoolClearDeadEntries(LLVMOrcExecutionSessionGetSymbolStringPool(LLVMOrcLLJITGetExecutionSession(jit)));
}

void ll_shutdown(void)
{
    while (live) {
        cg_code *code = live;
        live = code->next;
        unload(code);
    }
    if (jit)
        failed(LLVMOrcDisposeLLJIT(jit), "shutdown");
    jit = NULL;
    while (idle) {
        machine *m = idle;
        idle = m->next;
        LLVMDisposeTargetMachine(m->tm);
        ll_host->free(m);
    }
}
