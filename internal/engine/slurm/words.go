package slurm

import (
	"slices"
	"strings"

	"premix/internal/engine/pilot"
)

// Words of Slurm: states of jobs, see squeue(1), JOB STATE CODES, and why they wait,
// JOB REASON CODES.

// Jobs in these states have not started, or start again.
var waiting = []string{"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}

// Jobs in these states have ended.
var over = map[string]string{
	"BOOT_FAIL":     "its node did not boot",
	"CANCELLED":     "it was cancelled",
	"COMPLETED":     "it ended",
	"DEADLINE":      "its deadline had come",
	"FAILED":        "it failed",
	"NODE_FAIL":     "its node was lost",
	"OUT_OF_MEMORY": "it ran out of memory",
	"PREEMPTED":     "it had to make room for a job of higher priority",
	"REVOKED":       "it was started on another cluster",
	"TIMEOUT":       "it reached its time limit",
}

// stuck are reasons for which Slurm holds a job that it could not start, until an operator
// or the user releases it. The words are written with blanks or with underscores, by version.
var stuck = []string{"JobHoldMaxRequeue", "launch failed requeued held", "launch_failed_requeued_held"}

// blameless reports whether a job can have ended so through no fault of its own.
func blameless(state string) bool {
	return slices.Contains([]string{"BOOT_FAIL", "CANCELLED", "NODE_FAIL", "PREEMPTED", "REVOKED"}, state)
}

// finished returns in plain words how a job ended.
func finished(state string) string {
	if text, ok := over[state]; ok {
		return text
	}
	return state
}

func live(state string) bool {
	_, ok := over[state]
	return !ok
}

// reasons are why a job waits, in plain words.
var reasons = map[string]string{
	"None":                        "it was not looked at yet",
	"Resources":                   "it is next, when nodes are free",
	"Priority":                    "jobs with a higher priority come before it",
	"Dependency":                  "it waits for another job",
	"DependencyNeverSatisfied":    "it waits for a job that can never end as it should",
	"BeginTime":                   "it is not to start before a time that was set, as after a requeue",
	"JobHoldMaxRequeue":           "it was requeued as often as Slurm does that",
	"launch failed requeued held": "it could not be launched",
	"launch_failed_requeued_held": "it could not be launched",
	"JobHeldUser":                 "its user holds it (scontrol release)",
	"JobHeldAdmin":                "an administrator holds it",
	"JobArrayTaskLimit":           "as many jobs of its array run as may",
	"Licenses":                    "it waits for a licence",
	"Reservation":                 "it waits for its reservation",
	"ReservationDeleted":          "its reservation is gone",
	"PartitionDown":               "its partition is down",
	"PartitionInactive":           "its partition is inactive",
	"PartitionNodeLimit":          "it asks for more than its partition has",
	"PartitionTimeLimit":          "its time limit is longer than its partition allows",
	"PartitionConfig":             "its partition does not take it",
	"BadConstraints":              "no node has what it asks for",
	"NodeDown":                    "a node that it needs is down",
	"ReqNodeNotAvail":             "nodes that it needs are down or reserved",
	"FrontEndDown":                "no front end is up",
	"Prolog":                      "the node is being prepared for it",
	"Cleaning":                    "what is left of its last start is being removed",
	"SystemFailure":               "Slurm had a failure of its own",
	"InvalidAccount":              "its account is not valid",
	"InvalidQOS":                  "its quality of service is not valid",
	"AccountNotAllowed":           "its account may not use this partition",
	"QOSNotAllowed":               "its quality of service may not use this partition",
	"JobLaunchFailure":            "it could not be launched",
	"NonZeroExitCode":             "it ended with another status than 0",
	"TimeLimit":                   "it reached its time limit",
	"NodeFailure":                 "a node failed",
	"OutOfMemory":                 "it ran out of memory",
}

// plain returns in plain words why a job waits.
func plain(reason string) string {
	// ReqNodeNotAvail, UnavailableNodes:n1
	word, _, _ := strings.Cut(reason, ",")
	text, ok := reasons[word]
	if ok && word == reason {
		return text + " (" + word + ")"
	}
	if ok {
		return text + " (" + reason + ")"
	}
	limit := func(who string) string {
		return "what " + who + " may use at a time is in use (" + reason + ")"
	}
	switch {
	case strings.HasPrefix(word, "QOSGrp"), strings.HasPrefix(word, "QOSMax"), strings.HasPrefix(word, "QOSMin"), strings.HasPrefix(word, "QOS"):
		return limit("its quality of service")
	case strings.HasPrefix(word, "AssocGrp"), strings.HasPrefix(word, "AssocMax"), strings.HasPrefix(word, "Assoc"), strings.HasPrefix(word, "MaxJobs"):
		return limit("its account or user")
	case word == "":
		return "Slurm does not say why"
	}
	return "Slurm says " + reason
}

// status returns the status of a job in a listing.
func (j *job) status() pilot.Status {
	st := pilot.Status{Phase: pilot.Running, Word: j.State, Node: j.Node}
	if slices.Contains(waiting, j.State) {
		st.Phase, st.Reason, st.Stuck = pilot.Pending, plain(j.Reason), slices.Contains(stuck, j.Reason)
	} else if !live(j.State) {
		st.Phase, st.Reason, st.Blameless = pilot.Ended, finished(j.State), blameless(j.State)
	}
	return st
}
