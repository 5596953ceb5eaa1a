package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/nccl/ncclenv"
)

var environmentChecks = []check{
	{"env-nccl", "settings of NCCL and PyTorch in the environment", "NCCL says nothing about a name that it does not know or a value that it reads as 0", "commprobe env check", envNCCL},
	{"env-conf", "settings of NCCL in files", "files are in force for every job on this node, and nobody remembers them", "commprobe env check; NCCL_CONF_FILE, ~/.nccl.conf, /etc/nccl.conf", envConf},
	{"env-visible", "CUDA_VISIBLE_DEVICES", "a number that does not exist hides itself and all behind it", "CUDA programming guide, environment variables", envVisible},
	{"env-libraries", "library path", "stubs of the CUDA toolkit are for linking: loaded, every CUDA call fails", "CUDA installation guide", envLibraries},
}

// settings reads what is in force, as NCCL does.
func (m *machine) settings() *ncclenv.Source {
	return ncclenv.FromEnvironment(m.Env, ncclenv.Place{Root: m.at(""), Dir: m.at(""), Machine: ncclenv.MachineAt(m.at(""))}, ncclenv.Version{})
}

// report takes over the findings of the settings' own checker.
func (v *verdict) report(src *ncclenv.Source, from func(string) bool) {
	list := ncclenv.Check(src, ncclenv.Version{})
	ncclenv.Sort(list)
	for _, f := range list {
		if !from(f.From) {
			continue
		}
		text := f.Text
		if f.Name != "" {
			text = fmt.Sprintf("%s=%s: %s", f.Name, f.Value, f.Text)
		}
		if f.From != "environment" && f.From != "" {
			text = fmt.Sprintf("%s:%d: %s", f.From, f.Line, text)
		}
		switch f.Severity {
		case ncclenv.Fault:
			v.fault(f.Advice, "%s", text)
		case ncclenv.Odd:
			v.warn(f.Advice, "%s", text)
		default:
			v.ok("%s", text)
		}
	}
}

func inEnvironment(from string) bool { return from == "environment" || from == "" }

func envNCCL(m *machine, v *verdict) {
	src := m.settings()
	var names []string
	for _, s := range src.Settings {
		if inEnvironment(s.From) && (strings.HasPrefix(s.Name, "NCCL_") || strings.HasPrefix(s.Name, "TORCH_")) {
			names = append(names, s.Name+"="+s.Value)
		}
	}
	v.fact("settings", strings.Join(names, " "))
	v.report(src, inEnvironment)
	if len(names) == 0 {
		v.allOK("none set")
		return
	}
	v.allOK("%s", shorten(names, 8))
}

func envConf(m *machine, v *verdict) {
	src := m.settings()
	var lines []string
	for _, s := range src.Settings {
		if !inEnvironment(s.From) {
			lines = append(lines, s.Name+"="+s.Value+" ("+s.Where()+")")
		}
	}
	v.report(src, func(from string) bool { return !inEnvironment(from) })
	if len(lines) == 0 && len(v.notes) == 0 {
		v.skip("no file sets anything")
		return
	}
	v.fact("settings in files", strings.Join(lines, " "))
	v.allOK("%s", shorten(lines, 8))
}

func envVisible(m *machine, v *verdict) {
	value, isSet := m.env["CUDA_VISIBLE_DEVICES"]
	if !isSet {
		v.skip("not set")
		return
	}
	gpus := len(m.gpus())
	const fix = "unset CUDA_VISIBLE_DEVICES, or name GPUs that there are: nvidia-smi -L"
	if strings.TrimSpace(value) == "" || value == "-1" || value == "NoDevFiles" {
		if gpus > 0 {
			v.fault(fix, "CUDA_VISIBLE_DEVICES=%q hides all %d GPUs", value, gpus)
			return
		}
		v.ok("no GPU, as it should be here")
		return
	}
	var seen []string
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		n, err := strconv.Atoi(part)
		switch {
		case slices.Contains(seen, part):
			v.fault(fix, "CUDA_VISIBLE_DEVICES=%s names %s twice: CUDA then shows no GPU", value, part)
		case err == nil && gpus > 0 && (n < 0 || n >= gpus):
			v.fault(fix, "CUDA_VISIBLE_DEVICES=%s: there is no GPU %d, and those behind it are hidden, too", value, n)
		case err != nil && !strings.HasPrefix(part, "GPU-") && !strings.HasPrefix(part, "MIG-"):
			v.fault(fix, "CUDA_VISIBLE_DEVICES=%s: %q is neither a number nor a UUID", value, part)
		}
		seen = append(seen, part)
	}
	v.allOK("%s", value)
}

func envLibraries(m *machine, v *verdict) {
	paths, preload := m.env["LD_LIBRARY_PATH"], m.env["LD_PRELOAD"]
	if paths == "" && preload == "" {
		v.skip("neither LD_LIBRARY_PATH nor LD_PRELOAD is set")
		return
	}
	for dir := range strings.SplitSeq(paths, ":") {
		if strings.HasSuffix(strings.TrimSuffix(dir, "/"), "/stubs") {
			v.fault("take it out of LD_LIBRARY_PATH", "LD_LIBRARY_PATH has %s: the stub of libcuda is loaded instead of the driver's", dir)
		}
	}
	for _, file := range strings.FieldsFunc(preload, func(r rune) bool { return r == ':' || r == ' ' }) {
		if strings.HasPrefix(file, "/") && !m.exists(strings.TrimPrefix(file, "/")) {
			v.warn("correct or unset LD_PRELOAD", "LD_PRELOAD has %s, which does not exist", file)
		}
	}
	v.fact("library path", paths)
	if preload != "" {
		v.fact("preloaded", preload)
	}
	v.allOK("LD_LIBRARY_PATH=%s LD_PRELOAD=%s", paths, preload)
}
