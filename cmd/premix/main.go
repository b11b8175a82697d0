package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"premix/internal/engine/shim"
	"premix/internal/engine/spawn"
	"premix/internal/hotstart"
	"premix/internal/hotstart/calls"
	"premix/internal/image/bundle"
	"premix/internal/kit/exit"
	"premix/internal/node"
)

// version is set by the linker.
var version = "(devel)"

func main() {
	if os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid() {
		// The environment belongs to another user: PATH, PREMIX_HOME and many more.
		fmt.Fprintln(os.Stderr, "error: premix must not be set-user-ID or set-group-ID\nhint: chmod ug-s the binary, and use sudo")
		os.Exit(int(exit.Usage))
	}
	if calls.RunBeside() {
		return
	}
	// A supervisor is this binary, executed again as a process between premix and a tool.
	if len(os.Args) > 1 && os.Args[1] == hotstart.SupervisorArg {
		os.Exit(hotstart.SupervisorMain())
	}
	if len(os.Args) == 2 && os.Args[1] == spawn.Arg {
		os.Exit(spawn.Main())
	}
	if len(os.Args) == 3 && os.Args[1] == bundle.SupervisorArg {
		os.Exit(bundle.Main(os.Args[2]))
	}
	if len(os.Args) > 1 && node.IsProcess(os.Args[1]) {
		os.Exit(node.Main(os.Args[1], version))
	}
	if len(os.Args) > 1 && os.Args[1] == shim.ClientArg {
		os.Exit(shim.ClientMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == shim.HolderArg {
		os.Exit(shim.HolderMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == shim.WorkerArg {
		os.Exit(shim.WorkerMain(os.Args[2:], version))
	}
	collectLate()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// firstCollection is the size of the heap at the first garbage collection, in percent of
// the usual 4 MB.
const firstCollection = 400

// collectLate delays the first collection of garbage until 16 MB are in use; later
// collections are as usual. Package initialisation fills most of the usual 4 MB, and a
// short command would spend half of its time on one or two collections.
func collectLate() {
	usual := debug.SetGCPercent(firstCollection)
	if usual < 0 || usual > firstCollection { // the user has set GOGC for fewer collections
		debug.SetGCPercent(usual)
		return
	}
	// Nothing refers to it, so the first collection cleans it up. SetGCPercent waits for
	// the end of that collection, which a cleanup must not do.
	runtime.AddCleanup(new([16]byte), func(percent int) { go debug.SetGCPercent(percent) }, usual)
}
