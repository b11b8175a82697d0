package shim

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/kit/regex"
)

// gpuName is the resource that --gpus and its relatives are about.
const gpuName = "gpu"

// resourcePrefix begins the variables in which the engine names the ids of the resources that a
// job holds.
const resourcePrefix = "PREMIX_RESOURCE_"

// gpuVariable has the ids of the GPUs that a process may use.
const gpuVariable = "CUDA_VISIBLE_DEVICES"

// resourceUnit is the unit of resources that are sizes, such as space on a disk, in bytes.
const resourceUnit = 1 << 30

// gres is the generic resources of this machine, such as GPUs. Jobs hold them exclusively.
type gres struct {
	total queue.Resources
	sized map[string]bool // counted in GiB
	// remote: Slurm knows which resources there are. Numbers with a suffix are counted in GiB.
	remote bool
}

// generic is one resource of a list.
type generic struct {
	name, kind string
	text       string // the number as it was given
	count      int64
	suffix     bool // text has one
}

// String returns a resource as Slurm takes it, as in gpu:a100:2.
func (e *generic) String() string {
	if e.kind == "" {
		return e.name + ":" + e.text
	}
	return e.name + ":" + e.kind + ":" + e.text
}

// parseGres reads resources as premix slurm-shim --resource takes them: NAME=N, or NAME=SIZE for
// a resource of which jobs ask for a size.
func parseGres(list []string) (*gres, error) {
	g := &gres{total: make(queue.Resources), sized: make(map[string]bool)}
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if _, twice := g.total[name]; !ok || twice {
			return nil, exit.Errorf(exit.Usage, "write it as in --resource gpu=4 or --resource tmpspace=500G, each name once", "--resource: %q is not of the form NAME=N", text)
		}
		n, suffix, err := parseMultiple(value)
		if err != nil {
			return nil, exit.Errorf(exit.Usage, "write it as in --resource gpu=4 or --resource tmpspace=500G", "--resource: %q is not of the form NAME=N", text)
		}
		if g.sized[name] = suffix; suffix {
			n /= resourceUnit
		}
		one, err := queue.ParseResources(fmt.Sprintf("%s=%d", name, n))
		if err != nil {
			return nil, exit.Errorf(exit.Usage, "write it as in --resource gpu=4 or --resource tmpspace=500G", "--resource: %w", err)
		}
		maps.Copy(g.total, one)
	}
	return g, nil
}

// parseMultiple reads a number, which a letter of KMGT may multiply.
func parseMultiple(text string) (n int64, suffix bool, err error) {
	shift := 0
	if text != "" {
		if i := strings.IndexByte("KMGT", text[len(text)-1]&^0x20); i >= 0 {
			text, shift, suffix = text[:len(text)-1], 10*(i+1), true
		}
	}
	n, err = strconv.ParseInt(text, 10, 64)
	if err == nil && (n < 0 || n > math.MaxInt64>>shift) {
		err = strconv.ErrRange
	}
	return n << shift, suffix, err
}

// genericForm is the form of a name, a type or a number of a resource.
var genericForm = regex.Lazy(`^[A-Za-z0-9_.+-]+$`)

// parseGeneric reads a list of resources as --gres takes it: NAME[:TYPE][:COUNT],... bare is the
// resource of lists in which a count stands alone, as in --gpus=2; "": each has a name.
func parseGeneric(option, text, bare string) (list []*generic, err error) {
	bad := func(reason string) error {
		return &optionError{fmt.Sprintf("Invalid generic resource (gres) specification: --%s=%s: %s", option, text, reason), "write it as in --gres=gpu:2 or --gpus=2"}
	}
	for part := range strings.SplitSeq(text, ",") {
		for _, prefix := range []string{"gres:", "gres/"} {
			part = strings.TrimPrefix(part, prefix)
		}
		words := strings.FieldsFunc(part, func(c rune) bool { return c == ':' || c == '=' })
		if bare != "" {
			words = append([]string{bare}, words...)
		}
		wrong := func(word string) bool { return !genericForm().MatchString(word) }
		if len(words) == 0 || len(words) > 3 || bare != "" && len(words) == 1 || slices.ContainsFunc(words, wrong) {
			return nil, bad(fmt.Sprintf("%q is not NAME[:TYPE][:COUNT]", part))
		}
		e := &generic{name: strings.ToLower(words[0]), count: 1, text: "1"}
		if last := words[len(words)-1]; len(words) > 1 && last[0] >= '0' && last[0] <= '9' {
			if e.count, e.suffix, err = parseMultiple(last); err != nil {
				return nil, bad(fmt.Sprintf("%q is not a count", last))
			}
			e.text, words = last, words[:len(words)-1]
		} else if len(words) == 3 {
			return nil, bad(fmt.Sprintf("%q is not a count", last))
		}
		if len(words) == 2 {
			e.kind = words[1]
		}
		list = append(list, e)
	}
	return list, nil
}

// sum returns the resources of a list, without their types.
func (g *gres) sum(list []*generic) queue.Resources {
	r := make(queue.Resources)
	for _, e := range list {
		count := e.count
		if g.sized[e.name] || g.remote && e.suffix {
			count = (count-1)/resourceUnit + 1
		}
		r[e.name] = int(min(int64(r[e.name])+min(count, math.MaxInt32), math.MaxInt32))
	}
	return r
}

// parse returns the resources of a list; see parseGeneric. Types have no effect on one machine.
func (g *gres) parse(option, text, bare string) (queue.Resources, error) {
	list, err := parseGeneric(option, text, bare)
	if err != nil {
		return nil, err
	}
	return g.sum(list), nil
}

// check refuses a request for more than there is.
func (g *gres) check(r queue.Resources) error {
	if g.remote {
		return nil
	}
	const reason = "Batch job submission failed: Requested node configuration is not available"
	for _, name := range slices.Sorted(maps.Keys(r)) {
		switch {
		case r[name] > 0 && g.total[name] == 0:
			return &optionError{reason, fmt.Sprintf("the job asks for %s and there is none; premix slurm-shim --resource %s=N says how many there are", name, name)}
		case r[name] > g.total[name]:
			return &optionError{reason,
				fmt.Sprintf("the job asks for %s and there are %s; premix slurm-shim --resource says how many may be used", g.one(name, r[name], "="), g.one(name, g.total[name], "="))}
		}
	}
	return nil
}

// one returns the name of a resource and its number, as in gpu:2 or tmpspace:10G.
func (g *gres) one(name string, n int, between string) string {
	text := name + between + strconv.Itoa(n)
	if g.sized[name] && n > 0 {
		text += "G"
	}
	return text
}

// text returns resources as Slurm lists them, as in gpu:2,tmpspace:10G.
func (g *gres) text(r queue.Resources) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name] > 0 {
			list = append(list, g.one(name, r[name], ":"))
		}
	}
	return strings.Join(list, ",")
}

// gresTexts returns the resources of a job, each with a prefix, as in gres:gpu:2.
func (n *jobMeta) gresTexts(prefix, between string) string {
	if n.Gres == "" {
		return ""
	}
	var list []string
	for part := range strings.SplitSeq(n.Gres, ",") {
		i := strings.LastIndexByte(part, ':') // before the number
		list = append(list, prefix+part[:i]+between+part[i+1:])
	}
	return strings.Join(list, ",")
}

// gpuOptions are the options that ask for GPUs, by their part of the job.
var gpuOptions = []string{"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"}

// generic interprets the options for generic resources. It is called before those for cores and
// memory, which may depend on the number of GPUs.
func (s *submission) generic(g *gres) error {
	list, err := s.perTask()
	if err != nil {
		return err
	}
	if text := s.set["gres"]; text != "" && text != "none" {
		more, err := parseGeneric("gres", text, "")
		if err != nil {
			return err
		}
		list = append(list, more...)
	}
	r := g.sum(list)
	gpus, err := s.gpus(g, r[gpuName])
	if err != nil {
		return err
	}
	if r[gpuName] = gpus; gpus == 0 {
		delete(r, gpuName)
	}
	if err := g.check(r); err != nil {
		return err
	}
	s.gpuCount, s.Gres, s.resourceText = gpus, g.text(r), r.String()
	if g.remote {
		if s.Gres, err = s.forSlurm(list, gpus); err != nil {
			return err
		}
	}
	return s.perGPU(gpus)
}

// gpus returns the number of GPUs that all options together ask for. several are those of
// --gres.
func (s *submission) gpus(g *gres, several int) (int, error) {
	asked := make(map[string]int)
	if several > 0 {
		asked["gres"] = several
	}
	for _, name := range gpuOptions {
		text, ok := s.set[name]
		if !ok {
			continue
		}
		r, err := g.parse(name, text, gpuName)
		if err != nil {
			return 0, err
		}
		asked[name] = r[gpuName]
	}
	perTask, ok := asked["gpus-per-task"]
	delete(asked, "gpus-per-task")
	if ok {
		_, tasks := s.set["ntasks"]
		if total := asked["gpus"]; !tasks && total > 0 && perTask > 0 {
			s.set["ntasks"] = strconv.Itoa(max(1, total/perTask))
		}
		n, err := parseCount("ntasks", s.tasksText())
		if err != nil {
			return 0, err
		}
		asked["gpus-per-task"] = perTask * n
	}
	first := ""
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if first != "" && asked[name] != asked[first] {
			return 0, &optionError{fmt.Sprintf("--%s and --%s do not agree: they are %d and %d GPUs of the job", first, name, asked[first], asked[name]), "give one of them"}
		}
		first = name
	}
	return asked[first], nil
}

// forSlurm returns the resources of a job for Slurm's own --gres, with the types of its GPUs. list
// has the resources that --gres and --tres-per-task ask for.
func (s *submission) forSlurm(list []*generic, gpus int) (string, error) {
	var texts []string
	sources := map[string][]*generic{} // of types of GPUs, by option
	for _, e := range list {
		switch {
		case e.name == gpuName:
			sources["gres"] = append(sources["gres"], e)
		case e.count > 0:
			texts = append(texts, e.String())
		}
	}
	for _, name := range gpuOptions {
		if text, ok := s.set[name]; ok {
			var err error
			if sources[name], err = parseGeneric(name, text, gpuName); err != nil {
				return "", err
			}
		}
	}
	if gpus == 0 {
		return strings.Join(texts, ","), nil
	}
	typed, from := "", ""
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		text, err := kinds(name, sources[name], gpus)
		switch {
		case err != nil:
			return "", err
		case text == "" || text == typed:
		case typed != "":
			return "", &optionError{fmt.Sprintf("--%s and --%s do not agree: they are %s and %s of the job", from, name, typed, text), "give one of them"}
		default:
			typed, from = text, name
		}
	}
	if typed == "" {
		typed = fmt.Sprintf("%s:%d", gpuName, gpus)
	}
	return strings.Join(append(texts, typed), ","), nil
}

// kinds returns the GPUs of a job, by type, from an option that may name those of a task; "" if
// the option names no types.
func kinds(option string, list []*generic, gpus int) (string, error) {
	total, named := int64(0), false
	for _, e := range list {
		total += e.count
		named = named || e.kind != ""
	}
	if !named || total == 0 {
		return "", nil
	}
	var texts []string
	for _, e := range list {
		if e.suffix {
			return "", &optionError{fmt.Sprintf("--%s: %s is not a number of GPUs", option, e.text), "write it as in --gpus=a100:2"}
		}
		one := generic{name: gpuName, kind: e.kind, text: strconv.FormatInt(e.count*int64(gpus)/total, 10)}
		texts = append(texts, one.String())
	}
	slices.Sort(texts)
	return strings.Join(texts, ","), nil
}

// perTask interprets --tres-per-task, as in cpu:4,gres/gpu:1: it sets the options that mean the
// same, and returns the resources that have none, for all tasks of the job.
func (s *submission) perTask() ([]*generic, error) {
	text, ok := s.set[tresPerTask]
	if !ok {
		return nil, nil
	}
	t, err := parsePerTask(text)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"cpus-per-task": t.cpus, "gpus-per-task": t.gpus} {
		if value == "" {
			continue
		}
		if other, ok := s.set[name]; ok && other != value {
			return nil, disagree(name, value, other)
		}
		s.set[name] = value
	}
	n, err := parseCount("ntasks", s.tasksText())
	if err != nil {
		return nil, err
	}
	for _, e := range t.others {
		if e.count > math.MaxInt64/int64(n) {
			return nil, &optionError{fmt.Sprintf("--%s=%s: %s is too large", tresPerTask, text, e.text), ""}
		}
		e.count *= int64(n)
		digits := strings.TrimRight(e.text, "KMGTkmgt")
		if count, err := strconv.ParseInt(digits, 10, 64); err == nil {
			e.text = strconv.FormatInt(count*int64(n), 10) + e.text[len(digits):]
		}
	}
	return t.others, nil
}

// tresPerTask is the option for the resources of a task.
const tresPerTask = "tres-per-task"

// taskNeeds is the value of --tres-per-task.
type taskNeeds struct {
	cpus, gpus string // as the options for them take it; "": none
	others     []*generic
}

func parsePerTask(text string) (t taskNeeds, err error) {
	for part := range strings.SplitSeq(text, ",") {
		kind, rest, named := strings.Cut(part, "/")
		switch {
		case !named:
			name, n, ok := strings.Cut(strings.Replace(part, "=", ":", 1), ":")
			if !strings.EqualFold(name, "cpu") || !ok || t.cpus != "" {
				return t, &optionError{fmt.Sprintf("invalid TRES for --%s: %s", tresPerTask, part), "write it as in cpu:4,gres/gpu:1"}
			}
			t.cpus = n
		case !strings.EqualFold(kind, "gres"):
			return t, &optionError{fmt.Sprintf("invalid TRES for --%s: %s", tresPerTask, part), "it takes cpu and gres/NAME"}
		default:
			list, err := parseGeneric(tresPerTask, rest, "")
			if err != nil {
				return t, err
			}
			if e := list[0]; e.name == gpuName {
				t.gpus = strings.TrimPrefix(t.gpus+","+strings.TrimPrefix(e.String(), gpuName+":"), ",")
			} else {
				t.others = append(t.others, e)
			}
		}
	}
	return t, nil
}

// tasksText returns the number of tasks that the options ask for.
func (s *submission) tasksText() string {
	for _, name := range []string{"ntasks", "ntasks-per-node"} {
		if text, ok := s.set[name]; ok {
			return text
		}
	}
	return "1"
}

// perGPU interprets the options for tasks, cores and memory of each GPU.
func (s *submission) perGPU(gpus int) error {
	for name, others := range map[string][]string{"ntasks-per-gpu": {"ntasks", "ntasks-per-node"}, "cpus-per-gpu": {"cpus-per-task"}, "mem-per-gpu": {"mem", "mem-per-cpu"}} {
		if _, ok := s.set[name]; !ok {
			continue
		}
		if gpus == 0 {
			return &optionError{fmt.Sprintf("--%s without GPUs", name), "give --gpus too"}
		}
		for _, other := range others {
			if _, ok := s.set[other]; ok {
				return &optionError{fmt.Sprintf("--%s and --%s exclude each other", name, other), "give one of them"}
			}
		}
	}
	if text, ok := s.set["ntasks-per-gpu"]; ok {
		n, err := parseCount("ntasks-per-gpu", text)
		if err != nil {
			return err
		}
		s.set["ntasks"] = strconv.Itoa(n * gpus)
	}
	if text, ok := s.set["cpus-per-gpu"]; ok {
		n, err := parseCount("cpus-per-gpu", text)
		if err != nil {
			return err
		}
		s.coresOfGPUs = n * gpus
	}
	if text, ok := s.set["mem-per-gpu"]; ok {
		n, err := parseMemory(text)
		if err != nil {
			return err
		}
		if n > math.MaxInt64/int64(gpus) {
			return &optionError{fmt.Sprintf("invalid memory specification %q", text), "write a number of megabytes, or as in 4G"}
		}
		s.memoryOfGPUs = n * int64(gpus)
	}
	return nil
}

// gpuVariables returns the variables with which Slurm describes the GPUs of a job.
func (s *submission) gpuVariables() map[string]string {
	m := make(map[string]string)
	for name, variable := range map[string]string{"gpus": "SLURM_GPUS", "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus-per-socket": "SLURM_GPUS_PER_SOCKET", "gpus-per-task": "SLURM_GPUS_PER_TASK",
		"cpus-per-gpu": "SLURM_CPUS_PER_GPU", "mem-per-gpu": "SLURM_MEM_PER_GPU", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU", tresPerTask: "SLURM_TRES_PER_TASK"} {
		if value, ok := s.set[name]; ok {
			m[variable] = value
		}
	}
	if s.gpuCount > 0 {
		m["SLURM_GPUS_ON_NODE"] = strconv.Itoa(s.gpuCount)
	}
	return m
}

// perTask returns the arguments of srun with the options that --tres-per-task means in its place.
func (a *arguments) perTask() (*arguments, error) {
	text, ok := a.value(tresPerTask)
	if !ok {
		return a, nil
	}
	t, err := parsePerTask(text)
	if err != nil {
		return nil, err
	}
	for _, e := range t.others {
		if os.Getenv(resourcePrefix+strings.ToUpper(e.name)) == "" && e.count > 0 {
			return nil, &optionError{"Unable to create step: Invalid generic resource (gres) specification", fmt.Sprintf("the job holds no %s; ask for it in sbatch or salloc", e.name)}
		}
	}
	more := &arguments{slices.Clone(a.list), a.rest}
	for _, v := range [][2]string{{"cpus-per-task", t.cpus}, {"gpus-per-task", t.gpus}} {
		if v[1] == "" {
			continue
		}
		if other, ok := a.value(v[0]); ok && other != v[1] {
			return nil, disagree(v[0], v[1], other)
		}
		o, err := find(srunOptions(), v[0])
		if err != nil {
			return nil, err
		}
		more.list = append(more.list, given{o, v[1]})
	}
	return more, nil
}

// disagree is the error of --tres-per-task and another option for the same.
func disagree(name, value, other string) error {
	return &optionError{fmt.Sprintf("--%s and --%s do not agree: they are %s and %s", tresPerTask, name, value, other), "give one of them"}
}

// devices returns the ids of the GPUs of the job in which this process is.
func devices() []string {
	return strings.FieldsFunc(os.Getenv(resourcePrefix+strings.ToUpper(gpuName)), func(r rune) bool { return r == ',' })
}

// generic interprets the options of srun for the resources of a step, which are part of those of
// the job.
func (l *stepRun) generic(a *arguments) error {
	have := devices()
	// Of resources other than GPUs a step has all of the job.
	g := &gres{total: make(queue.Resources), sized: make(map[string]bool)}
	for _, option := range append([]string{"gres"}, gpuOptions...) {
		text, ok := a.value(option)
		if !ok && option == "gpus-per-task" {
			text, ok = os.LookupEnv("SLURM_GPUS_PER_TASK")
		}
		if !ok || text == "none" {
			continue
		}
		bare := gpuName
		if option == "gres" {
			bare = ""
		}
		r, err := g.parse(option, text, bare)
		if err != nil {
			return err
		}
		for name := range r {
			if os.Getenv(resourcePrefix+strings.ToUpper(name)) == "" && r[name] > 0 {
				return &optionError{fmt.Sprintf("Unable to create step for job %d: Invalid generic resource (gres) specification", l.job), fmt.Sprintf("the job holds no %s; ask for it in sbatch or salloc", name)}
			}
		}
		if n := r[gpuName]; option == "gpus-per-task" {
			l.gpusPerTask, l.gpus = n, n*l.tasks
		} else if n > 0 {
			l.gpus = n
		}
	}
	if l.gpus > len(have) {
		return &optionError{fmt.Sprintf("Unable to create step for job %d: More GPUs requested than permitted", l.job), fmt.Sprintf("the step asks for %d GPUs and the job has %d", l.gpus, len(have))}
	}
	if l.gpusPerTask*l.tasks > l.gpus {
		return &optionError{fmt.Sprintf("Unable to create step for job %d: %d tasks with %d GPUs each are more than %d", l.job, l.tasks, l.gpusPerTask, l.gpus), "ask for more GPUs, or fewer tasks"}
	}
	l.devices = have
	if l.gpus > 0 {
		l.devices = have[:l.gpus]
	}
	return nil
}

// gpuEnviron returns the variables with the GPUs of a task of a step. Without GPUs in the job
// they are as the job has them.
func (l *stepRun) gpuEnviron(rank int) []string {
	if len(l.devices) == 0 {
		return nil
	}
	ids := l.devices
	if n := l.gpusPerTask; n > 0 {
		ids = ids[rank*n : (rank+1)*n]
	}
	return []string{gpuVariable + "=" + strings.Join(ids, ","), "SLURM_STEP_GPUS=" + strings.Join(l.devices, ","), "SLURM_GPUS_ON_NODE=" + strconv.Itoa(len(l.devices))}
}

// pickDevices returns GPUs of a job for a step: those that no other step of the job holds. ok is
// false if there are not enough of them.
func (s *steps) pickDevices(one *step) (ids []string, ok bool) {
	free := slices.Clone(one.Devices)
	for _, other := range s.open {
		if other.Job == one.Job && !other.Overlap && !one.Overlap {
			free = slices.DeleteFunc(free, func(id string) bool { return slices.Contains(other.held, id) })
		}
	}
	if one.GPUs > len(free) {
		return nil, false
	}
	return free[:one.GPUs], true
}
