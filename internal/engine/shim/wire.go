package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// wireFormat is the version of the messages between clients and worker.
const wireFormat = 1

// Programs of requests that users do not call.
const (
	stepBegin = "step-begin" // srun in a job: answers the id of the step
	stepEnd   = "step-end"
	awaitEnd  = "await" // answers the state of a job that has ended
)

// request is the message of a client, as one JSON value. Fields that may hold any byte are
// base64.
type request struct {
	Format  int      `json:"format"`
	ID      string   `json:"id"` // random; the same when it is sent again
	Program string   `json:"program"`
	Args    [][]byte `json:"args"`
	Env     [][]byte `json:"env,omitempty"` // of sbatch
	Dir     []byte   `json:"dir"`
	Script  []byte   `json:"script,omitempty"` // of sbatch

	Interactive bool  `json:"interactive,omitempty"` // sbatch is of srun or salloc
	Step        *step `json:"step,omitempty"`        // of stepBegin and stepEnd
}

// response is the worker's answer.
type response struct {
	Format int    `json:"format"`
	Exit   int    `json:"exit"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
}

func toBytes(list []string) [][]byte {
	all := make([][]byte, len(list))
	for i, s := range list {
		all[i] = []byte(s)
	}
	return all
}

func toStrings(list [][]byte) []string {
	all := make([]string, len(list))
	for i, b := range list {
		all[i] = string(b)
	}
	return all
}

// environ returns the environment of a request.
func (r *request) environ() map[string]string {
	env := make(map[string]string, len(r.Env))
	for _, kv := range r.Env {
		for i, c := range kv {
			if c == '=' && i > 0 {
				env[string(kv[:i])] = string(kv[i+1:])
				break
			}
		}
	}
	return env
}

func send(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

func receive(r io.Reader, v any) error { return json.NewDecoder(r).Decode(v) }

// fail returns the answer to a request that failed, in the words of the client's Slurm
// program.
func fail(program string, exit int, err error) response {
	text := fmt.Sprintf("%s: error: %v\n", program, err)
	var h interface{ Hint() string }
	if errors.As(err, &h) && h.Hint() != "" {
		text += fmt.Sprintf("%s: hint: %s\n", program, h.Hint())
	}
	return response{Format: wireFormat, Exit: exit, Stderr: []byte(text)}
}
