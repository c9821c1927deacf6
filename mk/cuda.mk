# The simulated CUDA device of the tests: build/tests/libsimcuda.so, a stand-in for libcuda.so.1 (tests/cuda/sim), and build/tests/libsimnvrtc.so. Included by mk/build.mk.
#
# Its arithmetic is compiled once per instruction set, like the kernels; directed roundings need -frounding-math.
SIM_SRC  := $(filter-out tests/cuda/sim/exec_alu.c,$(wildcard tests/cuda/sim/*.c))
SIM_ISA  := tests/cuda/sim/exec_alu.c
SIM_OBJ  := $(SIM_SRC:%.c=$O/%.o) $(foreach i,$(ISAS),$(SIM_ISA:%.c=$O/%.$i.o))
SIM      := $B/tests/libsimcuda.so
SIM_OPT  := $(if $(filter release,$(CONFIG)),-O3) -fno-strict-aliasing -fvisibility=hidden -fPIC

$O/tests/cuda/sim/%.o: PROGRAM_CFLAGS += $(SIM_OPT)
$O/tests/cuda/sim/exec_cvt.o $O/tests/cuda/sim/exec_round.o: PROGRAM_CFLAGS += -frounding-math

define sim_isa_rule
$O/tests/cuda/sim/%.$1.o: tests/cuda/sim/%.c $(AFTER)
	$$(folder)
	$$(call say,CC,$$< ($1))
	$$(call compile,$$(PROGRAM_CFLAGS) $$(ISAOPT) $$(ISA_$1) -DKB_ISA_SUFFIX=$1)
endef
$(foreach i,$(ISAS),$(eval $(call sim_isa_rule,$i)))

$(SIM): $(SIM_OBJ)
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) -shared -Wl,-z,defs $(SIM_OBJ) -lm -lpthread -ldl -o $@

# A stand-in for NVRTC that asks the host's C++ compiler (tests/cuda/host); it carries the header that goes before each kernel
HOST_NVRTC := $B/tests/libsimnvrtc.so
build/gen/sim_prelude.c: tests/cuda/host/host_api.h tests/cuda/host/device.hh
	$(folder)
	$(call say,GEN,$@)
	$Q{ echo '/* Written by mk/cuda.mk */'; echo 'const char sim_host_prelude[];'; echo 'const char sim_host_prelude[] ='; \
	    cat $^ | sed -e '/#include "tests/d' -e '/#pragma once/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/'; echo '    ;'; } > $@

$(HOST_NVRTC): $O/tests/cuda/host/nvrtc_host.o $O/gen/sim_prelude.o
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) -shared -Wl,-z,defs $(filter %.o,$^) -ldl -o $@
$O/tests/cuda/host/%.o: PROGRAM_CFLAGS += $(SIM_OPT)

# A stand-in for cuBLASLt on the simulated device
SIM_LT := $B/tests/libsimcublaslt.so
$(SIM_LT): $O/tests/cuda/lt/standin.o
	$(folder)
	$(call say,LINK,$@)
	$Q$(LINK) -shared -Wl,-z,defs $^ -ldl -o $@
$O/tests/cuda/lt/%.o: PROGRAM_CFLAGS += $(SIM_OPT)

# What tests of the device need besides the test programs
.PHONY: sim-test
sim-test: $(SIM) $(HOST_NVRTC) $(SIM_LT)
	@:
tests: $(SIM) $(HOST_NVRTC) $(SIM_LT)

# Tests without Criterion, for the machine with the GPU: those that make their tensors on the default device
PLAIN_TESTS := $(wildcard tests/complaints/*.c) tests/test_control.c
COMPLAINTS_OBJ := $(patsubst tests/%.c,$O/tests/plain/%.o,$(PLAIN_TESTS)) $O/tests/cuda/plain/runner.o
$O/tests/plain/%.o: tests/%.c $(AFTER)
	$(folder)
	$(call say,CC,$<)
	$(call compile,-Itests/cuda/plain $(PROGRAM_CFLAGS))

$B/gpu/complaints: $(COMPLAINTS_OBJ) $(NO_CACHE) $(STATIC)
	$(folder)
	$(call say,LINK,$@)
	$(call program)

# What tools/gpu-check.sh runs
.PHONY: gpu-check
gpu-check: $B/kiln-nvrtc.so $B/tests/conformance $B/bench/gpu_bench $B/gpu/complaints
	@:
$B/bench/gpu_facts: $O/tests/support/cuda_sources.o
