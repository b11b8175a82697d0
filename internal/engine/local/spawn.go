package local

import (
	"os/exec"
	"runtime"
	"sync"
)

// spawner starts processes from one OS thread that lasts as long as premix:
// PDEATHSIG is sent when the thread that made the child ends (prctl(2)).
var spawner = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// startTied starts a command whose life is tied to premix'.
func startTied(cmd *exec.Cmd) error {
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	return <-started
}
