package shim

import (
	"fmt"
	"strings"
	"sync"
)

// table parses the options of a program. A line begins with a use and names options, each as
// [LETTER|]NAME[=|=?]: with = an option requires a value, with =? it may have one.
func table(text string) func() []option {
	return sync.OnceValue(func() (list []option) {
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			u, ok := map[string]use{"used": used, "site": site, "moot": moot, "refused": refused}[words[0]]
			if !ok {
				panic(fmt.Sprintf("no use %q", words[0]))
			}
			for _, word := range words[1:] {
				o := option{use: u}
				if len(word) > 2 && word[1] == '|' {
					o.short, word = word[0], word[2:]
				}
				switch {
				case strings.HasSuffix(word, "=?"):
					o.arg, word = optional, word[:len(word)-2]
				case strings.HasSuffix(word, "="):
					o.arg, word = required, word[:len(word)-1]
				}
				o.name = word
				list = append(list, o)
			}
		}
		return list
	})
}

// The options of each program, of Slurm 22.05 to 25.05. Where an option stands in the help of
// Slurm's own program, TestOptionsOfSlurm compares it.
var (
	sbatchOptions = table(`
used    a|array= b|begin= D|chdir= comment= c|cpus-per-task= d|dependency= e|error= exclusive=? export= H|hold J|job-name=
used    kill-on-invalid-dep= mem= mem-per-cpu= nice=? no-requeue N|nodes= n|ntasks= ntasks-per-node= open-mode= o|output= parsable priority= Q|quiet requeue
used    signal= test-only t|time= W|wait wrap=
site    A|account= M|clusters= cluster= C|constraint= L|licenses= p|partition= q|qos= reservation= w|nodelist= wckey= prefer= cluster-constraint= x|exclude= F|nodefile=
moot    time-min= v|verbose k|no-kill=? s|oversubscribe O|overcommit mail-type= mail-user= get-user-env=? propagate=? profile= acctg-freq=
moot    hint= mem-bind= cpu-freq= m|distribution= contiguous switches= spread-job use-min-nodes tmp= threads-per-core= mincpus= ignore-pbs
moot    delay-boot= reboot power= thread-spec= S|core-spec= wait-all-nodes= mcs-label= network=
used    gres= G|gpus= gpus-per-node= gpus-per-task= gpus-per-socket= cpus-per-gpu= mem-per-gpu= ntasks-per-gpu= tres-per-task=
moot    gpu-bind= gpu-freq= gres-flags=
refused i|input= bb= bbf= container= deadline= export-file= uid= gid= B|extra-node-info= sockets-per-node= cores-per-socket= ntasks-per-core= ntasks-per-socket=
`)
	squeueOptions = table(`
used    h|noheader o|format= O|Format= j|jobs=? job=? u|user= users= t|states= p|partition= n|name= A|account= q|qos= w|nodelist= me
used    json=? yaml=? S|sort= l|long r|array array-unique start s|steps=? i|iterate=
moot    a|all hide v|verbose M|clusters= cluster= local federation sibling R|reservation= noconvert
used    notme
refused L|licenses=
`)
	scancelOptions = table(`
used    u|user= n|name= jobname= t|state= p|partition= A|account= q|qos= w|nodelist= me s|signal= b|batch f|full Q|quiet
moot    H|hurry v|verbose ctld c|cron M|clusters= cluster= sibling= R|reservation=
refused i|interactive wckey=
`)
	sacctOptions = table(`
used    j|jobs= n|noheader X|allocations P|parsable2 p|parsable o|format= name= u|user= uid= s|state= S|starttime= E|endtime=
used    delimiter= r|partition= A|accounts= account= q|qos= b|brief l|long e|helpformat units= N|nodelist= B|batch-script env-vars json yaml
moot    noconvert M|clusters= cluster= L|allclusters a|allusers D|duplicates local federation T|truncate v|verbose array
refused c|completion f|file= g|gid= group= C|constraints= F|flags= I|ncpus= i|nnodes= K|timelimit-max= k|timelimit-min= R|reason= W|wckeys= whole-hetjob=? U|use-local-uid x|associations=
`)
	scontrolOptions = table(`
used    o|oneliner json=? yaml=?
moot    d|details a|all hide Q|quiet v|verbose M|clusters= cluster= local federation sibling F|future u|uid=
`)
	sinfoOptions = table(`
used    h|noheader o|format= O|Format= p|partition= N|Node l|long s|summarize json=? yaml=? t|states= i|iterate= d|dead R|list-reasons T|reservation n|nodes=
moot    a|all e|exact v|verbose r|responding M|clusters= cluster= S|sort= hide local federation noconvert
`)
	// Options that srun and salloc have for the allocation are options of sbatch; see allocated.
	srunOptions = table(`
used    n|ntasks= N|nodes= D|chdir= c|cpus-per-task= t|time= J|job-name= l|label o|output= e|error= i|input= K|kill-on-bad-exit=? W|wait= export=
used    exclusive=? exact overlap O|overcommit Q|quiet ntasks-per-node= open-mode= mpi= jobid= mem= mem-per-cpu= b|begin= d|dependency= H|hold comment= priority= nice=? 
site    A|account= M|clusters= C|constraint= L|licenses= p|partition= q|qos= reservation= w|nodelist= wckey= prefer= cluster-constraint= x|exclude=
moot    cpu-bind= u|unbuffered v|verbose s|oversubscribe m|distribution= hint= mem-bind= acctg-freq= cpu-freq= delay-boot= k|no-kill mail-type= mail-user= power= profile= propagate=?
moot    quit-on-interrupt reboot S|core-spec= slurmd-debug= spread-job switches= thread-spec= T|threads= time-min= use-min-nodes X|disable-status contiguous mincpus= tmp=
moot    resv-ports=? threads-per-core= mcs-label= network= signal= E|preserve-env send-libs=? compress=? accel-bind= container-id= debugger-test
refused I|immediate=? pty=? multi-prog bb= bbf= bcast=? bcast-exclude= container= deadline= epilog= het-group= prolog= r|relative= task-epilog= task-prolog= Z|no-allocate
refused sockets-per-node= cores-per-socket= B|extra-node-info= ntasks-per-core= ntasks-per-socket= uid= gid= export-file=
used    gres= G|gpus= gpus-per-node= gpus-per-socket= gpus-per-task= cpus-per-gpu= mem-per-gpu= ntasks-per-gpu= tres-per-task=
moot    gpu-bind= gpu-freq= gres-flags=
`)
	sallocOptions = table(`
used    n|ntasks= N|nodes= D|chdir= c|cpus-per-task= t|time= J|job-name= exclusive=? Q|quiet ntasks-per-node= mem= mem-per-cpu= b|begin= d|dependency= H|hold comment= priority= nice=?
refused I|immediate=? no-shell
site    A|account= M|clusters= C|constraint= L|licenses= p|partition= q|qos= reservation= w|nodelist= wckey= prefer= cluster-constraint= x|exclude=
moot    v|verbose s|oversubscribe O|overcommit m|distribution= hint= mem-bind= acctg-freq= cpu-freq= delay-boot= k|no-kill mail-type= mail-user= power= profile= F|nodefile= get-user-env=?
moot    K|kill-command=? reboot S|core-spec= spread-job switches= thread-spec= time-min= use-min-nodes wait-all-nodes= bell no-bell contiguous mincpus= tmp= threads-per-core= mcs-label= network= signal= W|wait=
refused bb= bbf= container= deadline= sockets-per-node= cores-per-socket= B|extra-node-info= ntasks-per-core= ntasks-per-socket=
refused uid= gid=
used    gres= G|gpus= gpus-per-node= gpus-per-socket= gpus-per-task= cpus-per-gpu= mem-per-gpu= ntasks-per-gpu= tres-per-task=
moot    gpu-bind= gpu-freq= gres-flags=
`)
	sstatOptions = table(`
used    j|jobs= a|allsteps n|noheader o|format= fields= p|parsable P|parsable2 e|helpformat
moot    noconvert v|verbose usage
refused i|pidformat
`)
	sprioOptions = table(`
used    h|noheader j|jobs=? l|long o|format= u|user= w|weights p|partition= S|sort=
moot    v|verbose M|clusters= cluster= federation local sibling noconvert
refused n|norm
`)
	sshareOptions = table(`
used    a|all A|accounts= n|noheader l|long o|format= p|parsable P|parsable2 u|users= e|helpformat
moot    U|Users v|verbose M|clusters= cluster= m|partition
`)
	sacctmgrOptions = table(`
used    n|noheader p|parsable P|parsable2
moot    i|immediate Q|quiet r|readonly s|associations v|verbose o|oneliner
refused json yaml
`)
)

// programs are the options of each program.
var programs = map[string]func() []option{"sbatch": sbatchOptions, "squeue": squeueOptions, "scancel": scancelOptions, "sacct": sacctOptions, "scontrol": scontrolOptions, "sinfo": sinfoOptions,
	"srun": srunOptions, "salloc": sallocOptions, "sstat": sstatOptions, "sprio": sprioOptions, "sshare": sshareOptions, "sacctmgr": sacctmgrOptions}

// help returns the help of a program: its options, by what premix does with them.
func help(program string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s [OPTIONS]..., as of Slurm 22.05, before premix\n", program)
	for _, group := range []struct {
		use   use
		title string
	}{{used, "Options"}, {site, "Options that are shown again and have no effect on one machine"}, {moot, "Options without an effect"}, {refused, "Options that are refused"}} {
		var names []string
		for _, o := range programs[program]() {
			if o.use != group.use {
				continue
			}
			name := "--" + o.name
			if o.short != 0 {
				name = "-" + string(o.short) + ", " + name
			}
			names = append(names, name+[]string{"", "=VALUE", "[=VALUE]"}[o.arg])
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "\n%s:\n  %s\n", group.title, strings.Join(names, "\n  "))
		}
	}
	return b.String()
}

// instead is the advice for options that are refused.
var instead = map[string]string{
	"pty": "salloc starts a shell in an allocation", "container": "name the image in the command, as in apptainer exec IMAGE ...", "deadline": "--time limits the run time",
	"licenses": "premix has no licences; name the jobs with --jobs or --name", "multi-prog": "start each program by a step of its own", "interactive": "name the jobs", "completion": "sacct without -c has the same jobs", "file": "sacct reads the jobs of this directory alone",
	"bb": "copy the files in the script", "bbf": "copy the files in the script", "export-file": "name variables with --export",
	"pidformat": "premix task why DIR JOB shows the process of a job", "norm": "squeue -o '%i %Q' shows the priorities of jobs",
}

// arguments are the options and the words of a call.
type arguments struct {
	list []given
	rest []string
}

// parse parses the arguments of a program, and refuses options that the program has not.
func parse(program string, options []option, args []string, inOrder bool) (*arguments, error) {
	list, rest, err := parseOptions(options, args, inOrder)
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		if g.use == refused {
			return nil, refusal(program, g.name)
		}
	}
	return &arguments{list, rest}, nil
}

// refusal is the error of an option that a program of premix has not.
func refusal(program, name string) error {
	hint, ok := instead[name]
	switch {
	case ok:
	case program == "sbatch", program == "srun", program == "salloc":
		hint = "leave it out, or submit to a real Slurm"
	default:
		hint = "premix help slurm-shim lists the options that premix has"
	}
	return &optionError{fmt.Sprintf("option '--%s' is not supported by premix", name), hint}
}

// value returns the last value of an option.
func (a *arguments) value(name string) (string, bool) {
	for i := len(a.list) - 1; i >= 0; i-- {
		if a.list[i].name == name {
			return a.list[i].value, true
		}
	}
	return "", false
}

// get returns the last value of an option, or otherwise.
func (a *arguments) get(name, otherwise string) string {
	if v, ok := a.value(name); ok {
		return v
	}
	return otherwise
}

// has reports whether an option was given.
func (a *arguments) has(names ...string) bool {
	for _, name := range names {
		if _, ok := a.value(name); ok {
			return true
		}
	}
	return false
}

// none refuses words that are not options.
func (a *arguments) none(hint string) error {
	if len(a.rest) > 0 {
		return &optionError{fmt.Sprintf("unexpected argument %q", a.rest[0]), hint}
	}
	return nil
}
