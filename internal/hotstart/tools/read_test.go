package tools

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// show returns the roles of a command's words as letters, and the words of the command unchanged.
func show(argv []string, r Reading) string {
	if r.Unfit != "" {
		return "unfit: " + r.Unfit
	}
	letters := map[Role]string{Data: "d", Input: "i", Output: "o", Label: "l"}
	var b strings.Builder
	for i := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		at := 0
		for _, w := range r.Words {
			if l := letters[w.Role]; w.Arg == i && l != "" {
				fmt.Fprintf(&b, "%s<%s:%s>", argv[i][at:w.From], l, argv[i][w.From:w.To])
				at = w.To
			}
		}
		b.WriteString(argv[i][at:])
	}
	return b.String()
}

func find(t *testing.T, name string) *Tool {
	t.Helper()
	tool, err := Find(name)
	if err != nil || tool == nil {
		t.Fatalf("%s: %v, %v", name, tool, err)
	}
	return tool
}

// A script has the same description as the programs that it starts.
func TestBehind(t *testing.T) {
	t.Setenv("PREMIX_TOOLS", t.TempDir())
	for program, want := range map[string]string{"bowtie2": "bowtie2", "/usr/bin/bowtie2-align-s": "bowtie2", "hisat2-align-l": "hisat2", "STAR-avx2": "STAR", "bowtie2-build": "", "bwa-mem": "", "bwa-mem2": "bwa-mem2", "-": ""} {
		tool, err := Find(program)
		switch {
		case err != nil:
			t.Error(err)
		case tool == nil && want != "", tool != nil && tool.Name != want:
			t.Errorf("%s is described by %+v, want %q", program, tool, want)
		}
	}
	r := find(t, "bowtie2-align-s").Read(strings.Fields("bowtie2-align-s --wrapper basic-0 -x g -1 a_1.fq -2 a_2.fq"))
	if r.Unfit != "" || len(r.Late()) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestRead(t *testing.T) {
	t.Setenv("PREMIX_TOOLS", t.TempDir())
	for _, c := range []struct{ line, want string }{
		{"bwa mem -t 4 -o a.sam ref/g.fa a_1.fq a_2.fq", "bwa mem -t 4 -o <o:a.sam> <d:ref/g.fa> <i:a_1.fq> <i:a_2.fq>"},
		{"bwa mem -t4 -pC -oa.sam ref a.fq", "bwa mem -t4 -pC -o<o:a.sam> <d:ref> <i:a.fq>"},
		{"bwa mem ref a.fq -t 4", "bwa mem <d:ref> <i:a.fq> -t 4"},
		{"/usr/bin/bwa mem -- ref -a.fq", "/usr/bin/bwa mem -- <d:ref> <i:-a.fq>"},
		{`bwa mem -R @RG\tID:S1\tSM:S1\tPL:ILLUMINA ref a.fq`, `bwa mem -R @RG\tID:<l:S1>\tSM:<l:S1>\tPL:ILLUMINA <d:ref> <i:a.fq>`},
		{"bwa mem -R@RG\tID:S1.L2 ref a.fq", "bwa mem -R@RG\tID:<l:S1.L2> <d:ref> <i:a.fq>"},
		{"bwa mem ref -", "bwa mem <d:ref> -"},
		{"bwa mem ref /dev/stdin", "bwa mem <d:ref> /dev/stdin"},
		{"bwa mem ref", "unfit: the command names no input"},
		{"bwa mem ref a b c", "unfit: the argument c is not in the catalogue"},
		{"bwa mem -J ref a", "unfit: the option -J is not in the catalogue"},
		{"bwa mem -t", "unfit: the option -t has no value"},
		{"bwa", "unfit: it has no subcommand"},
		{"bwa index ref.fa", "unfit: it writes an index"},
		{"bwa shm ref.fa", "unfit: bwa shm is not in the catalogue"},
		{"bwa --version", "unfit: bwa --version is not in the catalogue"},
		{"minimap2 -ax sr --cs=long --seed=7 ref.mmi a b c", "minimap2 -ax sr --cs=long --seed=7 <d:ref.mmi> <i:a> <i:b> <i:c>"},
		{"minimap2 -x map-ont -d out.mmi ref.fa", "unfit: -d: it writes an index"},
		{"minimap2 -adout.mmi ref.fa x", "unfit: -d: it writes an index"},
		{"bowtie2 -x idx/g -1 a,b -2 c,d --un-conc-gz u.fq.gz --rg-id S1 --rg SM:S1 -S x.sam",
			"bowtie2 -x <d:idx/g> -1 <i:a>,<i:b> -2 <i:c>,<i:d> --un-conc-gz <o:u.fq.gz> --rg-id <l:S1> --rg SM:<l:S1> -S <o:x.sam>"},
		{"bowtie2 -x g -c ACGT", "unfit: -c: the reads are words of the command"},
		{"hisat2 -x g -U r.fq --summary-file=s.txt", "hisat2 -x <d:g> -U <i:r.fq> --summary-file=<o:s.txt>"},
		{"STAR --genomeDir g --readFilesIn a,b c,d --outSAMtype BAM Unsorted --outFileNamePrefix S1. --outSAMattrRGline ID:S1 SM:S1 --clip5pNbases -1",
			"STAR --genomeDir <d:g> --readFilesIn <i:a>,<i:b> <i:c>,<i:d> --outSAMtype BAM Unsorted --outFileNamePrefix <o:S1.> --outSAMattrRGline ID:<l:S1> SM:<l:S1> --clip5pNbases -1"},
		{"STAR --genomeDir g --readFilesIn a --readFilesCommand gzip -dc --outFileNamePrefix o.", "STAR --genomeDir <d:g> --readFilesIn <i:a> --readFilesCommand gzip -dc --outFileNamePrefix <o:o.>"},
		{"STAR --genomeDir g --readFilesIn a --readFilesCommand zcat --twopassMode None", "STAR --genomeDir <d:g> --readFilesIn <i:a> --readFilesCommand zcat --twopassMode None"},
		{"STAR --genomeDir g --readFilesIn a --twopassMode Basic", "unfit: --twopassMode Basic: the sample changes the index between two passes"},
		{"STAR --genomeDir g --genomeLoad LoadAndKeep --readFilesIn a", "unfit: --genomeLoad LoadAndKeep: the genome lies in shared memory, which needs no hot start"},
		{"salmon quant -i idx -l A -1 a b -2 c d -p8 -o out", "salmon quant -i <d:idx> -l A -1 <i:a> <i:b> -2 <i:c> <i:d> -p8 -o <o:out>"},
		{"kallisto quant -i x.idx -o out --single -l 200 -s 20 r.fq", "kallisto quant -i <d:x.idx> -o <o:out> --single -l 200 -s 20 <i:r.fq>"},
		{"kraken2 --db k --paired --report r.txt a b", "kraken2 --db <d:k> --paired --report <o:r.txt> <i:a> <i:b>"},
		{"kraken2 -db k a", "unfit: the option -d is not in the catalogue"},
		{"diamond blastp -d db -q a.fa -f 6 qseqid sseqid -o a.tsv", "diamond blastp -d <d:db> -q <i:a.fa> -f 6 qseqid sseqid -o <o:a.tsv>"},
		{"diamond blastx -d db -q a.fa", "diamond blastx -d <d:db> -q <i:a.fa>"},
		{"blastn -db nt -query a.fa -outfmt 6 -out a.tsv", "blastn -db <d:nt> -query <i:a.fa> -outfmt 6 -out <o:a.tsv>"},
		{"hmmscan --cpu 2 -o o.txt Pfam.hmm a.fa", "hmmscan --cpu 2 -o <o:o.txt> <d:Pfam.hmm> <i:a.fa>"},
		{"mmseqs easy-search q.fa db out tmp", "unfit: it is a script of many short programs"},
		{"kmcp search -d db -1 a -2 b -o out", "kmcp search -d <d:db> -1 <i:a> -2 <i:b> -o <o:out>"},
		{"bwa-mem2 mem ref a b", "bwa-mem2 mem <d:ref> <i:a> <i:b>"},
	} {
		argv := strings.Split(c.line, " ")
		if got := show(argv, find(t, argv[0]).Read(argv)); got != c.want {
			t.Errorf("%q\n got %s\nwant %s", c.line, got, c.want)
		}
	}
}

// Every argument has a role, and no byte has two.
func TestWhole(t *testing.T) {
	argv := strings.Split("STAR --genomeDir g --readFilesIn a,b c --outSAMattrRGline ID:S1", " ")
	at, to := 0, 0
	for _, w := range find(t, "STAR").Read(argv).Words {
		if w.Arg == at+1 {
			at, to = w.Arg, 0
		}
		if w.Arg != at || w.From < to || w.To < w.From || w.To > len(argv[at]) {
			t.Fatalf("%+v behind byte %d of argument %d", w, to, at)
		}
		to = w.To
	}
	if at != len(argv)-1 {
		t.Errorf("the last argument with a role is %d", at)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PREMIX_TOOLS", dir)
	if tool, err := Find("/opt/unknown"); tool != nil || err != nil {
		t.Errorf("%v, %v for a program without a description", tool, err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("mine", "values: -k\noptions: {-i: data}\narguments: [input]\n")
	argv := []string{"mine", "-k", "3", "-i", "x", "a"}
	if got := show(argv, find(t, "/opt/bin/mine").Read(argv)); got != "mine -k 3 -i <d:x> <i:a>" {
		t.Error(got)
	}
	write("bwa", "arguments: [input]\n")
	if tool := find(t, "bwa"); tool.Commands != nil {
		t.Error("the user's description does not replace the embedded one")
	}
	for text, want := range map[string]string{
		"":                                 "bad.yaml: the description of a tool is empty",
		"- a\n":                            "bad.yaml:1: this is not a description of a tool",
		"flags: -a\nargs: [input]\n":       "bad.yaml:2: unknown key args in a description",
		"style: gnu\n":                     "bad.yaml:1: unknown style gnu",
		"options:\n  -o: outptu\n":         "bad.yaml:2: unknown role outptu",
		"flags: -a t\n":                    "bad.yaml:1: t is not an option",
		"flags: -a\nvalues: -b -a\n":       "bad.yaml:2: the option -a occurs twice",
		"arguments: input\n":               "bad.yaml:1: arguments must be a list",
		"rates: 'Speed'\n":                 "bad.yaml:1: rates must be a list",
		"flags: -a\nrates:\n  - '('\n":     "bad.yaml:3: \"(\" is not a regular expression",
		"arguments: [input..., data]\n":    "bad.yaml:1: only the last argument may be several words",
		"commands:\n  mem:\n    flg: -a\n": "bad.yaml:3: unknown key flg in mem",
	} {
		write("bad", text)
		if _, err := Find("bad"); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, want)) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	write("bad", "arguments: [input]\n")
	if err := os.Chmod(filepath.Join(dir, "bad.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Find("bad"); err == nil {
		t.Error("a description to which all can write is used")
	}
}

// Every embedded file is parsed without an error.
func TestEmbedded(t *testing.T) {
	t.Setenv("PREMIX_TOOLS", t.TempDir())
	for _, name := range Names() {
		find(t, name)
	}
	if n := len(Names()); n < 14 {
		t.Errorf("the catalogue has %d programs", n)
	}
}

// The catalogue has all options in the help of installed tools, and agrees about the options that
// have a value.
func TestHelp(t *testing.T) {
	t.Setenv("PREMIX_TOOLS", t.TempDir())
	dash := `--?[A-Za-z0-9][A-Za-z0-9_-]*`
	for _, c := range []struct {
		command string
		form    string // form of a line: groups of options, and a last group that matches if there is a value
		skip    string
	}{
		{"bwa mem", `^\s+(-\w)( [A-Z])?`, ""},
		{"bwa aln", `^\s+(-\w)( [A-Z])?`, ""},
		{"minimap2 --help", `^    (` + dash + `)( [A-Z])?`, "--version"},
		{"bowtie2 --help", `^  (` + dash + `)(?:/(` + dash + `))?( \[?[<3])?`, "--version -h -F"},
		{"hisat2 --help", `^  (` + dash + `)(?:/(` + dash + `))?( <)?`, "--version -h"},
		{"STAR --help", `^([a-z][A-Za-z0-9]+)( )`, "versionGenome"},
		{"salmon quant --help-reads", `^  (` + dash + `)(?: \[ (` + dash + `) \])?( arg)?`, "-v -h"},
		{"kallisto quant", `^(?:    )?(` + dash + `)(?:, (` + dash + `))?(=|)`, "-g -c"},
		{"kraken2 --help", `^  (` + dash + `)( [A-Z]{2,})?`, "--help --version"},
		{"/usr/lib/kraken2/classify", `^[* ] (-\w)( [a-zN])?`, ""},
		{"diamond help", `^(` + dash + `)(?: \((` + dash + `)\))?()`, ""},
		{"blastn -help", `^ (-\w+)( <)?`, "-h -help -version"},
		{"hmmscan -h", `^  (` + dash + `)( <)?`, "-h"},
	} {
		argv := strings.Fields(c.command)
		t.Run(argv[0], func(t *testing.T) {
			path, err := exec.LookPath(argv[0])
			if err != nil {
				t.Skipf("%s is not installed", argv[0])
			}
			out, _ := exec.Command(path, argv[1:]...).CombinedOutput() // the exit status of help differs
			d := &find(t, argv[0]).description
			if cmds := find(t, argv[0]).Commands; cmds != nil {
				if d = cmds[argv[1]]; d == nil {
					d = cmds["blastp"]
				}
			}
			form, seen := regexp.MustCompile(`(?m)`+c.form), 0
			for _, m := range form.FindAllStringSubmatch(string(out), -1) {
				if strings.Contains(" "+c.skip+" ", " "+m[1]+" ") || argv[0] == "diamond" && foreign(string(out), m[1]) {
					continue
				}
				for _, option := range m[1 : len(m)-1] {
					if option == "" {
						continue
					}
					if argv[0] == "STAR" {
						option = "--" + option
					}
					seen++
					r, ok := d.role(option)
					if !ok && strings.HasPrefix(option, "--genome") || strings.HasPrefix(option, "--version") {
						continue // an option for making an index
					}
					if !ok {
						t.Errorf("%s is not in the catalogue: %q", option, m[0])
					} else if value := m[len(m)-1] != ""; value != (r.Name != "") && argv[0] != "diamond" {
						t.Errorf("%s has the role %q: %q", option, r.Name, m[0])
					}
				}
			}
			if seen < 10 {
				t.Errorf("%d options were found in the help", seen)
			}
		})
	}
}

// foreign reports whether diamond lists an option for commands that do not search.
func foreign(help, option string) bool {
	section := ""
	for line := range strings.Lines(help) {
		if strings.HasSuffix(line, "options:\n") {
			section = line
		}
		if strings.HasPrefix(line, option+" ") {
			for _, s := range []string{"Makedb", "Clustering", "Cluster input", "View", "Getseq"} {
				if strings.HasPrefix(section, s) {
					return true
				}
			}
		}
	}
	return false
}

func FuzzRead(f *testing.F) {
	f.Add("mem\x00-t4\x00ref\x00a")
	tools := map[string]*Tool{}
	for _, name := range Names() {
		tool, err := Find(name)
		if err != nil {
			f.Fatal(err)
		}
		tools[name] = tool
	}
	f.Fuzz(func(t *testing.T, line string) {
		for name, tool := range tools {
			argv := append([]string{name}, strings.Split(line, "\x00")...)
			for _, w := range tool.Read(argv).Words {
				if w.Arg >= len(argv) || w.From < 0 || w.From > w.To || w.To > len(argv[w.Arg]) {
					t.Fatalf("%q: %+v", argv, w)
				}
			}
		}
	})
}
