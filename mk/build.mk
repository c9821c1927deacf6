# The rules that build files, read by a make of its own after the packages are known to be there (see Makefile).
#
# CONFIG   where         what
# release  build/        -O2, as installed
# debug    build/debug/  address and undefined-behaviour sanitizers
# tsan     build/tsan/   thread sanitizer
# cov      build/cov/    gcov counters
#
# Sources are found by wildcard: a new file in a known folder is picked up by itself. An object is rebuilt when its source, a header that
# it included last time, or the flags changed. Generated text (build/include, build/gen) is shared by all configurations.
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
MAKEFLAGS += -rR --no-print-directory

# The version is what the public header says
define version_part
$(or $(shell sed -n 's/^.define KN_VERSION_$1 *\([0-9]*\).*/\1/p' include/kiln/kiln.h 2>/dev/null),0)
endef
SOMAJOR := $(strip $(call version_part,MAJOR))
VERSION := $(SOMAJOR).$(strip $(call version_part,MINOR))
CONFIG  ?= release
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
INCDIR  ?= $(PREFIX)/include
BINDIR  ?= $(PREFIX)/bin

ifeq ($(origin CC),default)
CC := gcc
endif
ifneq ($(filter default undefined,$(origin CXX)),)
CXX := g++
endif
ifeq ($(origin AR),default)
AR := gcc-ar
endif
HOSTCC      ?= $(CC)
PKG_CONFIG  ?= pkg-config
LLVM_CONFIG ?= llvm-config-19
Q           := $(if $(V),,@)

# ---- flags ------------------------------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wswitch-enum -Wstrict-prototypes \
    -Werror=implicit-function-declaration -Werror=incompatible-pointer-types -Werror=int-conversion
FP   := -ffp-contract=off -fno-math-errno -fno-trapping-math

ifeq ($(CONFIG),release)
B     := build
OPT   := -O2 -g1
OPT3  := -O3
# Broken invariants refuse instead of aborting. Programs keep their asserts: tests may use them.
LIBOPT := -DNDEBUG
else ifeq ($(CONFIG),debug)
B     := build/debug
OPT   := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
LOPT  := -fsanitize=address,undefined
# gcc aligns the stack that it keeps for use-after-return checks to 32 bytes only, which 64-byte vectors don't survive
ISAOPT := --param asan-use-after-return=0
else ifeq ($(CONFIG),tsan)
B     := build/tsan
OPT   := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
LOPT  := -fsanitize=thread
else ifeq ($(CONFIG),cov)
B     := build/cov
OPT   := -O1 -g --coverage -fprofile-update=atomic
LIBOPT := -DNDEBUG
LOPT  := --coverage
else
$(error CONFIG is release, debug, tsan or cov, not '$(CONFIG)')
endif
O := $(B)/obj

CFLAGS   ?=
LDFLAGS  ?=
# User's CFLAGS come last but for the floating-point rules, on which the equality of results rests
LIBRARY_CFLAGS = -std=gnu11 $(OPT) $(LIBOPT) $(WARN) -fvisibility=hidden -fPIC -pthread -I. -Iinclude -Ibuild/include $(PKG_CFLAGS) $(CFLAGS) $(FP)
PROGRAM_CFLAGS = -std=gnu11 $(OPT) $(WARN) -pthread -I. -Iinclude -Ibuild/include $(PKG_CFLAGS) $(CFLAGS) $(FP)
EXAMPLE_CFLAGS = -std=gnu11 $(OPT) $(WARN) -pthread -Iinclude -Ibuild/include $(CFLAGS)
LINK           = $(CC) $(LOPT) -pthread -Wl,--as-needed $(LDFLAGS)

PKG_CFLAGS  := $(shell $(PKG_CONFIG) --cflags libffi jansson)
PKG_LIBS    := $(shell $(PKG_CONFIG) --libs libffi jansson) -lm
LLVM_CFLAGS := $(addprefix -isystem ,$(shell $(LLVM_CONFIG) --includedir))
LLVM_LIBS    = -L$(shell $(LLVM_CONFIG) --libdir) $(shell $(LLVM_CONFIG) --libs)
# Measurements stand beside OpenBLAS where it is here; nothing else uses it
BLAS_CFLAGS := $(shell $(PKG_CONFIG) --cflags openblas 2>/dev/null && echo -DKB_BENCH_OPENBLAS)
BLAS_LIBS    = $(if $(BLAS_CFLAGS),$(shell $(PKG_CONFIG) --libs openblas))
CRITERION_LIBS = $(shell $(PKG_CONFIG) --libs criterion)

ISA_baseline :=
ISA_avx2     := -mavx2 -mfma -mf16c -mbmi2
ISA_avx512   := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mprefer-vector-width=512
ISAS         := baseline avx2 avx512

# ---- sources ----------------------------------------------------------------------------------------------------------------------
LIB_SRC     := $(wildcard base/*.c ir/*.c runtime/*.c runtime/kernels/*.c runtime/nn/*.c codegen/*.c tracer/*.c)
ISA_SRC     := $(wildcard runtime/kernels/isa/*.c)
BACKEND_SRC := $(wildcard codegen/llvm/*.c)
DEVICE_SRC  := $(wildcard codegen/nvrtc/*.c)
GENERATED   := $(if $(and $(wildcard tools/gen_ops.c),$(wildcard base/op.c)),build/gen/ops_face.c)
PKG_CFLAGS  += $(if $(GENERATED),,-DKN_NO_OPS)
GEN_HEADERS := $(if $(GENERATED),build/include/kiln/ops.h) build/gen/config.h

LIB_OBJ     := $(strip $(LIB_SRC:%.c=$O/%.o) $(foreach i,$(ISAS),$(ISA_SRC:%.c=$O/%.$i.o)) $(GENERATED:build/%.c=$O/%.o))
BACKEND_OBJ := $(BACKEND_SRC:%.c=$O/%.o)
DEVICE_OBJ  := $(DEVICE_SRC:%.c=$O/%.o)

# Our own declarations of CUDA's functions, compared with the toolkit's where its headers are
CUDA_HEADERS := $(firstword $(wildcard $(addsuffix /include/cuda.h,$(CUDA_HOME) $(CUDA_PATH) /usr/local/cuda)))

# tests/test_*.c and tests/complaints/: one Criterion program. fuzz_*: a program each. Any other file there that has a main (plain_*, by custom): a program that
# `make test` runs; *_sweep, run by itself, samples what `make exhaustive` has it do in full. The rest, tests/support/ and tests/isa/
# (compiled like the kernels, once per instruction set) are shared by all of them.
TEST_SRC    := $(wildcard tests/test_*.c tests/*/test_*.c tests/complaints/*.c)
FUZZ_SRC    := $(wildcard tests/fuzz_*.c)
OTHER_SRC   := $(filter-out $(TEST_SRC) $(FUZZ_SRC) tests/cuda_headers.c,$(wildcard tests/*.c))
PLAIN_SRC   := $(sort $(if $(OTHER_SRC),$(shell grep -lw '^int main' $(OTHER_SRC))))
SUPPORT_SRC := $(filter-out $(PLAIN_SRC),$(OTHER_SRC)) $(wildcard tests/support/*.c)
TISA_SRC    := $(wildcard tests/isa/*.c)
SUPPORT_OBJ := $(SUPPORT_SRC:%.c=$O/%.o) $(foreach i,$(ISAS),$(TISA_SRC:%.c=$O/%.$i.o))
# bench/*.c: a program each, bench/*/*.c shared by them
BENCH_SRC   := $(wildcard bench/*.c)
BSUP_SRC    := $(wildcard bench/*/*.c)
EXAMPLE_SRC := $(wildcard examples/*.c)
CXX_SRC     := $(wildcard tests/*.cc)
TOOL_SRC    := $(filter-out tools/gen_%.c,$(wildcard tools/*.c))

SHARED  := $(if $(LIB_OBJ),$B/libkiln.so)
STATIC  := $B/libkiln.a
BACKEND := $(if $(BACKEND_SRC),$B/kiln-llvm.so) $(if $(DEVICE_SRC),$B/kiln-nvrtc.so)
TOOLS   := $(TOOL_SRC:tools/%.c=$B/%)

.PHONY: all lib backend tests thread-tests benches fuzzers exhaustives examples install FORCE
all: lib backend $(TOOLS)
	@:
lib: $(SHARED) $(STATIC)
	@:
backend: $(BACKEND)
	@:
tests: $(if $(TEST_SRC),$B/tests/kiln-tests) $(PLAIN_SRC:%.c=$B/%) $(EXAMPLE_SRC:%.c=$B/%) $(CXX_SRC:%.cc=$B/%)
	@:
thread-tests: $(patsubst %.c,$B/%,$(filter tests/plain_threads% tests/threads_%,$(PLAIN_SRC)))
	@:
benches: $(BENCH_SRC:%.c=$B/%)
	@:
fuzzers: $(FUZZ_SRC:%.c=$B/%)
	@:
exhaustives: $(patsubst %.c,$B/%,$(filter %_sweep.c,$(PLAIN_SRC)))
	@:
examples: $(EXAMPLE_SRC:%.c=$B/%)
	@:
FORCE:

# ---- progress: "CC [3/78] base/alloc.c"; the counter covers objects that weren't there when make started --------------------------------
MISSING := $(filter-out $(wildcard $(LIB_OBJ) $(BACKEND_OBJ) $(DEVICE_OBJ)),$(LIB_OBJ) $(BACKEND_OBJ) $(DEVICE_OBJ))
counter  = $(if $(filter $@,$(MISSING)),$(eval DONE += x)[$(words $(DONE))/$(words $(MISSING))] )
say      = @printf '%-5s %s\n' '$1' '$(counter)$2'
folder   = @mkdir -p $(@D)

# ---- generated text ---------------------------------------------------------------------------------------------------------------
build/gen_ops: tools/gen_ops.c
	$(folder)
	$(call say,HOST,$<)
	$Q$(HOSTCC) -std=gnu11 -O1 $(WARN) -I. -Iinclude -MMD -MP -MF build/gen_ops.d $< -o $@

build/include/kiln/ops.h: build/gen_ops
	$(folder)
	$(call say,GEN,$@)
	$Qbuild/gen_ops header > $@

build/gen/ops_face.c: build/gen_ops
	$(folder)
	$(call say,GEN,$@)
	$Qbuild/gen_ops source > $@

# Where the library will be installed, and its version: #include "build/gen/config.h"
define CONFIG_H
/* Written by mk/build.mk */
#define KB_VERSION "$(VERSION)"
#define KB_LIBDIR "$(LIBDIR)"
#define KB_BACKEND_DIR "$(LIBDIR)/kiln"
endef
build/gen/config.h: FORCE
	$(shell mkdir -p $(@D))$(file >$@.new,$(CONFIG_H))
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# Flags as of the last build: touched when they change, and everything compiled depends on it
$O/flags: FORCE
	$(shell mkdir -p $(@D))$(file >$@.new,$(CC) $(LIBRARY_CFLAGS) $(OPT3) $(ISAOPT) $(LLVM_CFLAGS) $(foreach i,$(ISAS),$(ISA_$i)))
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# What is linked of which files: when one comes or goes, everything is linked anew, or a stale archive would keep what it held
$O/members: FORCE
	$(shell mkdir -p $(@D))$(file >$@.new,$(LIB_OBJ) $(BACKEND_OBJ) $(DEVICE_OBJ) $(TEST_SRC) $(SUPPORT_OBJ) $(BSUP_SRC))
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# ---- objects ----------------------------------------------------------------------------------------------------------------------
AFTER   := $O/flags | $(GEN_HEADERS)
DEPFLAG  = -MMD -MP -MF $(@:.o=.d)
compile  = $Q$(CC) $1 $(DEPFLAG) -c $< -o $@

define isa_rule
$O/runtime/kernels/isa/%.$1.o: runtime/kernels/isa/%.c $(AFTER)
	$$(folder)
	$$(call say,CC,$$< ($1))
	$$(call compile,$$(LIBRARY_CFLAGS) $$(OPT3) $$(ISAOPT) $$(ISA_$1) -DKB_ISA_SUFFIX=$1)
$O/tests/isa/%.$1.o: tests/isa/%.c $(AFTER)
	$$(folder)
	$$(call say,CC,$$< ($1))
	$$(call compile,$$(PROGRAM_CFLAGS) $$(OPT3) $$(ISAOPT) $$(ISA_$1) -DKB_ISA_SUFFIX=$1)
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

$O/codegen/llvm/%.o: codegen/llvm/%.c $(AFTER)
	$(folder)
	$(call say,CC,$<)
	$(call compile,$(LIBRARY_CFLAGS) $(LLVM_CFLAGS))

$O/gen/%.o: build/gen/%.c $(AFTER)
	$(folder)
	$(call say,CC,$<)
	$(call compile,$(LIBRARY_CFLAGS))

$O/tests/%.o $O/bench/%.o $O/tools/%.o: PROGRAM := yes
$O/bench/%.o: PROGRAM_CFLAGS += $(BLAS_CFLAGS)
$O/examples/%.o: EXAMPLE := yes
$O/%.o: %.c $(AFTER)
	$(folder)
	$(call say,CC,$<)
	$(call compile,$(if $(EXAMPLE),$(EXAMPLE_CFLAGS),$(if $(PROGRAM),$(PROGRAM_CFLAGS),$(LIBRARY_CFLAGS))))

# ---- libraries --------------------------------------------------------------------------------------------------------------------
SO := libkiln.so.$(VERSION)
$B/$(SO): $(LIB_OBJ) tools/kiln.map $O/members
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) -shared -Wl,-soname,libkiln.so.$(SOMAJOR) -Wl,--version-script=tools/kiln.map -Wl,-z,defs -Wl,--build-id=sha1 \
	    $(LIB_OBJ) $(PKG_LIBS) -o $@

$B/libkiln.so: $B/$(SO)
	@ln -sf $(SO) $B/libkiln.so.$(SOMAJOR)
	@ln -sf libkiln.so.$(SOMAJOR) $@

# An archive keeps members whose source is gone, so it is made anew
$B/libkiln.a: $(LIB_OBJ) $O/members
	$(folder)
	$(call say,AR,$@)
	@rm -f $@
	$Q$(AR) rcs $@ $(LIB_OBJ)

# The backend gets its functions as a table: -z defs makes sure that it calls nothing of libkiln's
$B/kiln-llvm.so: $(BACKEND_OBJ) tools/kiln-llvm.map $O/members
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) -shared -Wl,--version-script=tools/kiln-llvm.map -Wl,-z,defs -Wl,--build-id=sha1 \
	    $(BACKEND_OBJ) $(LLVM_LIBS) -lm -o $@

# Compiles for CUDA devices; NVRTC is opened at run time, so nothing of a toolkit is needed here
$B/kiln-nvrtc.so: $(DEVICE_OBJ) tools/kiln-nvrtc.map $O/members
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) -shared -Wl,--version-script=tools/kiln-nvrtc.map -Wl,-z,defs -Wl,--build-id=sha1 $(DEVICE_OBJ) -lm -ldl -o $@

# ---- programs ---------------------------------------------------------------------------------------------------------------------
# Inside programs link the archive, where internal names are visible; -rdynamic lets dladdr name their functions
program = $Q$(LINK) -rdynamic $(filter %.o,$^) $(filter-out %/libkiln.a,$(filter %.a,$^)) $(STATIC) $1 $(PKG_LIBS) -ldl -o $@

$(TOOLS): $B/%: $O/tools/%.o $(STATIC)
	$(folder)
	$(call say,LINK,$@)
	$(call program)

$B/tests/libsupport.a: $(SUPPORT_OBJ) $O/members
	$(folder)
	@rm -f $@
	$Q$(AR) rcs $@ $(filter %.o,$^)

# By name, since nothing in it is called
NO_CACHE := $O/tests/support/no_cache.o
$B/tests/kiln-tests: $(TEST_SRC:%.c=$O/%.o) $(NO_CACHE) $B/tests/libsupport.a $(STATIC)
	$(folder)
	$(call say,LINK,$@)
	$(call program,$(CRITERION_LIBS))

$B/tests/%: $O/tests/%.o $(NO_CACHE) $B/tests/libsupport.a $(STATIC)
	$(folder)
	$(call say,LINK,$@)
	$(call program)

# plain_work counts basic blocks of what compiles a graph: these sources once more, with a call in each
COUNTED_SRC := $(if $(wildcard tests/plain_work.c),$(wildcard ir/*.c codegen/*.c tracer/*.c))
$O/counted/%.o: %.c $(AFTER)
	$(folder)
	$(call say,CC,$< (counted))
	$(call compile,$(LIBRARY_CFLAGS) -O1 -fsanitize-coverage=trace-pc)
$B/tests/plain_work: $(COUNTED_SRC:%.c=$O/counted/%.o)

$B/bench/libsupport.a: $(BSUP_SRC:%.c=$O/%.o) $O/members
	$(folder)
	@rm -f $@
	$Q$(AR) rcs $@ $(filter %.o,$^)

$B/bench/%: $O/bench/%.o $(NO_CACHE) $B/bench/libsupport.a $(STATIC)
	$(folder)
	$(call say,LINK,$@)
	$(call program,$(BLAS_LIBS))

# Compiled, never linked: prototypes and constants are compared by the compiler
.PHONY: cuda-headers
cuda-headers: $(if $(CUDA_HEADERS),$O/tests/cuda_headers.o)
	$(if $(CUDA_HEADERS),@:,@echo "cuda_headers: SKIPPED: the CUDA toolkit's headers are not here (CUDA_HOME says where they are)")
tests: cuda-headers
$O/tests/cuda_headers.o: PROGRAM_CFLAGS += -isystem $(dir $(CUDA_HEADERS))

# The header from C++, against the shared library; a Criterion test runs it
$(CXX_SRC:%.cc=$B/%): $B/%: %.cc $(SHARED) $O/flags | $(GEN_HEADERS)
	@mkdir -p $(@D) $O/tests
	$(call say,CXX,$<)
	$Q$(CXX) -std=c++17 $(OPT) -Wall -Wextra -pedantic -pthread -Iinclude -Ibuild/include -MMD -MP -MF $O/$(<:.cc=.d) $(LOPT) $< -L$B -lkiln \
	    '-Wl,-rpath,$$ORIGIN/..' -o $@

# Examples are what a user would write: public headers and the shared library only
$B/examples/%: $O/examples/%.o $(SHARED)
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) $< -L$B -lkiln -lm '-Wl,-rpath,$$ORIGIN/..' -o $@

# ---- installation -----------------------------------------------------------------------------------------------------------------
PUBLIC_H := $(wildcard include/kiln/*.h) $(filter build/include/%,$(GEN_HEADERS))
D        := $(DESTDIR)
install: all
	@mkdir -p '$D$(LIBDIR)/kiln' '$D$(LIBDIR)/pkgconfig' '$D$(INCDIR)/kiln' '$D$(BINDIR)'
	$(if $(PUBLIC_H),$Qinstall -m 644 $(PUBLIC_H) '$D$(INCDIR)/kiln/')
	$(if $(SHARED),$Qinstall -m 755 $B/$(SO) '$D$(LIBDIR)/')
	$(if $(SHARED),$Qln -sf $(SO) '$D$(LIBDIR)/libkiln.so.$(SOMAJOR)')
	$(if $(SHARED),$Qln -sf libkiln.so.$(SOMAJOR) '$D$(LIBDIR)/libkiln.so')
	$Qinstall -m 644 $(STATIC) '$D$(LIBDIR)/'
	$(if $(BACKEND),$Qinstall -m 755 $(BACKEND) '$D$(LIBDIR)/kiln/')
	$(if $(TOOLS),$Qinstall -m 755 $(TOOLS) '$D$(BINDIR)/')
	$Qsed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCDIR@|$(INCDIR)|' -e 's|@VERSION@|$(VERSION)|' kiln.pc.in \
	    > '$D$(LIBDIR)/pkgconfig/kiln.pc'
	@echo 'Installed under $D$(PREFIX)'

# ---- for tools/lint.sh: "class source" lines ------------------------------------------------------------------------------------------
.PHONY: list-sources print-flags print-prefix
print-prefix:
	@echo '$(PREFIX)'
list-sources:
	@printf '%s\n' $(LIB_SRC:%='library %') $(ISA_SRC:%='isa %') $(TISA_SRC:%='isa %') $(BACKEND_SRC:%='backend %') $(DEVICE_SRC:%='library %') $(GENERATED:%='library %') \
	    $(foreach s,$(TEST_SRC) $(PLAIN_SRC) $(FUZZ_SRC) $(SUPPORT_SRC) $(TOOL_SRC),'program $s') \
	    $(SIM_SRC:%='program %') \
	    $(foreach s,$(BENCH_SRC) $(BSUP_SRC),'bench $s') \
	    $(EXAMPLE_SRC:%='example %')
print-flags:
	@echo 'library $(LIBRARY_CFLAGS)'
	@echo 'isa $(LIBRARY_CFLAGS) -DKB_ISA_SUFFIX=baseline'
	@echo 'backend $(LIBRARY_CFLAGS) $(LLVM_CFLAGS)'
	@echo 'program $(PROGRAM_CFLAGS)'
	@echo 'bench $(PROGRAM_CFLAGS) $(BLAS_CFLAGS)'
	@echo 'example $(EXAMPLE_CFLAGS)'

include mk/cuda.mk

# Kept between runs, and never mistaken for leftovers
.SECONDARY:
-include $(shell find $O -name '*.d' 2>/dev/null) $(wildcard build/gen_ops.d)
