/* Breaks designs that call a compiler: PATH is empty, and the kernel kills the process if it, or a child of it, executes any program.
 * Compilation still works, and nothing falls back to eager. */
#include "tests/complaints/complaints.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void forbid_programs(void)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execve, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execveat, 1, 0),              BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
    };
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){5, f}), 0, "no filter for system calls here");
}

Test(complaints, compiler_needed_at_run_time)
{
    KN_SCOPE;
    setenv("PATH", "", 1);
    forbid_programs();
    pid_t child = fork();               /* the filter works: a child that executes something is killed */
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status), "executing a program was not prevented");
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 8), kn_nn_gelu(), kn_nn_layer_norm(8), kn_nn_softmax(-1)), *fast = kn_compile(m);
    for (int i = 0; i < 4; i++)
        cr_assert(equal(kn_call(m, ramp(3, 4, i)), kn_call(fast, ramp(3, 4, i))));
    kn_stats s = kn_compile_stats(fast);
    cr_assert_gt(s.compiles, 0);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}
