package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"premix/engine/shim"
	"premix/engine/spawn"
	"premix/hotstart"
	"premix/hotstart/calls"
	"premix/image/bundle"
	"premix/internal/exit"
	"premix/node"
)

// version is set by the linker.
var version = "(devel)"

func main() {
	if os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid() {
		// Its environment would be another user's: PATH, PREMIX_HOME and many more.
		fmt.Fprintln(os.Stderr, "error: premix is set-user-ID or set-group-ID, which it must not be\nhint: chmod ug-s the binary, and use sudo")
		os.Exit(int(exit.Usage))
	}
	if calls.Beside() {
		return
	}
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
	collectLate()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// firstCollection is the size of the heap at which garbage is collected for the first
// time, in percent of the 4 MB that are usual.
const firstCollection = 400

// collectLate puts the first collection of garbage off until 16 MB are in use; afterwards
// it is as usual. What the packages make before main fills most of the usual 4 MB, and
// a short command would spend as long on one or two collections as on itself.
func collectLate() {
	usual := debug.SetGCPercent(firstCollection)
	if usual < 0 || usual > firstCollection { // of GOGC: whoever has set it wants fewer
		debug.SetGCPercent(usual)
		return
	}
	// Nothing holds it, so the first collection finds it. Changing the percentage waits
	// for that to end, which those who clean up need not do.
	runtime.AddCleanup(new([16]byte), func(percent int) { go debug.SetGCPercent(percent) }, usual)
}
