package main

import (
	"os"

	"premix/engine/shim"
	"premix/engine/spawn"
	"premix/hotstart"
	"premix/image/bundle"
	"premix/node"
)

// version is set by the linker.
var version = "(devel)"

func main() {
	// A stage is this binary, executed again to stand between premix and a tool.
	if len(os.Args) > 1 && os.Args[1] == hotstart.StageArg {
		os.Exit(hotstart.StageMain())
	}
	if len(os.Args) == 2 && os.Args[1] == spawn.Arg {
		os.Exit(spawn.Main())
	}
	if len(os.Args) == 3 && os.Args[1] == bundle.StageArg {
		os.Exit(bundle.Main(os.Args[2]))
	}
	if len(os.Args) > 1 && node.IsProcess(os.Args[1]) {
		os.Exit(node.Main(os.Args[1], version))
	}
	if len(os.Args) > 1 && os.Args[1] == shim.FrontArg {
		os.Exit(shim.FrontMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == shim.WorkerArg {
		os.Exit(shim.WorkerMain(os.Args[2:], version))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
