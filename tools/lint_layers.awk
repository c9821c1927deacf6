# lint_layers.awk: who may include whom. Reads every source and header named on the command line; prints each edge that isn't allowed.
#
#   base <- ir, runtime (blind to each other) <- codegen (ir, base) <- codegen/llvm, codegen/nvrtc (never each other) <- tracer (all)
#
# include/kiln is open to everyone and includes nothing else; examples see it alone; tests, bench and tools see everything.
function layer(path) {
    if (path ~ /^(include\/|build\/include\/)?kiln\//) return "public"
    if (path ~ /^codegen\/(llvm|nvrtc)\//) { split(path, part, "/"); return part[1] "/" part[2] }
    if (path !~ /\//) return "?"
    sub(/\/.*/, "", path)
    return path
}
BEGIN {
    allowed["public"] = "public"
    allowed["base"] = "base"
    allowed["ir"] = "ir base"
    allowed["runtime"] = "runtime base"
    allowed["codegen"] = "codegen ir base"
    allowed["codegen/llvm"] = "codegen/llvm codegen ir base"
    allowed["codegen/nvrtc"] = "codegen/nvrtc codegen ir base"
    allowed["tracer"] = "tracer codegen codegen/nvrtc ir runtime base"
    allowed["examples"] = "public"
    everything = "public base ir runtime codegen codegen/llvm codegen/nvrtc tracer tests bench tools examples"
    allowed["tests"] = allowed["bench"] = allowed["tools"] = everything
}
function complain(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; bad++ }
/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    from = layer(FILENAME)
    angle = $0 ~ /</
    path = $0
    sub(/^[^<"]*[<"]/, "", path)
    sub(/[>"].*/, "", path)
    if (angle && path !~ /^kiln\//) {
        if (path ~ /^llvm-c\// && from != "codegen/llvm") complain("only codegen/llvm knows LLVM")
        if (path ~ /^criterion\// && from != "tests") complain("only tests know Criterion")
        next
    }
    if (path == "build/gen/config.h") next
    to = layer(path)
    if (to == "?") {
        # A neighbour by its bare name: fine inside the public folder and among programs, elsewhere names start at the root
        if (from == "public" || from == "tests" || from == "bench" || from == "examples") next
        complain("\"" path "\": name it from the root of the tree")
        next
    }
    if (to == "public") next
    if (!(from in allowed)) { complain("no layer is known for this folder"); next }
    if (index(" " allowed[from] " ", " " to " ") == 0) complain(from " may not include " to " (" path ")")
}
END { exit bad != 0 }
