package evidence

import (
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// Programs are what the job's processes are called, as far as launchers, the kernel and stacks say it: "python3.10". Empty if nothing does; then nothing
// can be said of another program's end either.
func (e *Evidence) Programs() []string {
	var out []string
	add := func(name string) {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for i := range e.Facts {
		switch f := &e.Facts[i]; f.Kind {
		case Ended, Launcher:
			add(f.Program)
		case Xid:
			if f.Rank >= 0 {
				add(f.Program)
			}
		case Traceback:
			if slices.ContainsFunc(f.Stack, func(x flight.Frame) bool { return strings.HasSuffix(x.File, ".py") }) {
				add("python")
			}
		case Timeout, DumpSignal, Running, FirstToSignal:
			if strings.Contains(f.Text, "ProcessGroup") {
				add("python")
			}
		}
	}
	for i := range e.Stacks {
		command, _, _ := strings.Cut(e.Stacks[i].Name, " ")
		if e.Stacks[i].Tool == "py-spy" {
			command = "python"
		}
		add(programName([]byte(command)))
	}
	if len(e.Dumps) > 0 && len(out) == 0 {
		add("python")
	}
	return out
}

// SameProgram tells whether two names can be of one program. The kernel cuts names at 15 bytes, names of interpreters have a version, and PyTorch renames its
// processes and threads.
func SameProgram(a, b string) bool {
	a, b = programFamily(a), programFamily(b)
	if a == "" || b == "" {
		return true
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	return a == b || len(a) == 15 && strings.HasPrefix(b, a)
}

func programFamily(name string) string {
	name = strings.ToLower(name)
	for _, start := range []string{"python", "pt_", "ray::", "vllm::", "sglang::", "torchrun", "accelerate", "deepspeed"} {
		if strings.HasPrefix(name, start) {
			return "python"
		}
	}
	return name
}
