package ncclenv

import (
	"fmt"
	"slices"
	"strings"
)

// Check finds what is wrong with the settings of one source. A version makes it say what that library does not read; zero stands for any version
// from 2.18 to the newest known.
func Check(src *Source, version Version) []Finding {
	found := slices.Clone(src.Found)
	for i := range src.Settings {
		s := &src.Settings[i]
		v := Lookup(s.Name)
		if v == nil {
			if f, ok := unknown(s); ok {
				found = append(found, f)
			}
			continue
		}
		bad := checkStatus(v, s, version)
		values := checkValue(v, s, version)
		found = append(append(found, bad...), values...)
		if len(bad) == 0 && !HasFault(values) { // what has no effect is not left over
			found = append(found, leftOver(v, s)...)
		}
	}
	found = append(found, conflicts(src, version)...)
	Sort(found)
	return found
}

// pluginNames begin the variables of plugins, which NCCL's own list cannot know.
var pluginNames = []string{"NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_INSPECTOR_", "NCCL_PROFILE_", "NCCL_SHIMNET_", "NCCL_TUNER_CONFIG_", "NCCL_DXS_", "NCCL_TESTS_"}

func unknown(s *Setting) (Finding, bool) {
	if slices.ContainsFunc(pluginNames, func(p string) bool { return strings.HasPrefix(s.Name, p) }) {
		return Finding{}, false
	}
	if up := strings.ToUpper(s.Name); up != s.Name && Lookup(up) != nil {
		return s.about(Fault, "case-name", "names are in capitals: nothing reads this one").do("write %s", up), true
	}
	near := Nearest(s.Name)
	reader := "NCCL"
	if strings.HasPrefix(s.Name, "TORCH_") {
		reader = "PyTorch"
	}
	if len(near) == 0 {
		severity := Odd
		if strings.HasPrefix(s.Name, "TORCH_DISTRIBUTED_") {
			severity = Note // other parts of PyTorch have some
		}
		return s.about(severity, "unknown-name", "%s (known to %s) does not read this; a plugin may", reader, Known).do("remove it, unless a plugin's documents name it"), true
	}
	return s.about(Fault, "unknown-name", "nothing reads this name, and nothing says so").do("was %s meant?", strings.Join(near, " or ")), true
}

// checkStatus tells of names that are not read, or not by this version.
func checkStatus(v *Variable, s *Setting, version Version) []Finding {
	instead := ""
	if len(v.Replaced) > 0 {
		instead = "use " + strings.Join(v.Replaced, " or ")
	}
	one := func(severity, id, format string, args ...any) []Finding {
		f := s.about(severity, id, format, args...)
		if f.Advice = instead; instead == "" {
			f.Advice = "remove it"
		}
		return []Finding{f}
	}
	given := !version.IsZero() && v.NCCL()
	switch {
	case v.Status == Foreign && v.Layer == "other" || v.Name == "TORCH_NCCL_TIMEOUT":
		return one(Fault, "not-nccl", "%s", strings.TrimSuffix(v.Description, "."))
	case v.Status == Foreign && v.Layer == "torch":
		return one(Odd, "renamed", "old name of a PyTorch setting: newer versions warn, and will stop reading it")
	case v.Status == Foreign:
		return nil
	case v.Status == Gone:
		return one(Fault, "removed", "no version since 2.10 reads this")
	case v.Status == Removed && given && version.Before(v.Since):
		return one(Fault, "too-new", "read only from %s to %s, this is %s", v.Since, v.Last, version)
	case v.Status == Removed && given && !v.Last.Before(version):
		return nil
	case v.Status == Removed && (given || v.Last.Before(Version{2, 18, 0})):
		return one(Fault, "removed", "not read since %s was followed by the next version", v.Last)
	case v.Status == Removed:
		return one(Odd, "removed", "%s was the last version that read this", v.Last)
	case given && version.Before(v.Since) && s.Value != "":
		f := s.about(Fault, "too-new", "read from %s on, this is %s: it has no effect", v.Since, version)
		return []Finding{f.do("remove it, or load a newer NCCL")}
	case v.Status == Unread:
		return one(Odd, "unread", "declared in the source, but looked at nowhere in %s", Known)
	case v.Status == Deprecated:
		return one(Note, "renamed", "still read, but old")
	}
	return nil
}

// isDefault tells whether a value only repeats what NCCL does anyway.
func isDefault(v *Variable, value string) bool {
	value = strings.TrimSpace(value)
	switch {
	case v.integer() || v.Type == typeTorchInt:
		n, rest, ok, _ := cInt(value)
		d, _, have, _ := cInt(v.Default)
		// Automatic is -1 or -2, and "the program decides" is no number.
		return (!ok || rest == "") && (have && n == d || n == -2 && v.Default == "")
	case v.Type == typeTorchBool || v.Type == typeTorch01 || v.Type == typeBool:
		return truth(value) == truth(v.Default)
	}
	return value == "" || strings.EqualFold(value, v.Default)
}

func truth(s string) bool { return slices.Contains(torchTrue, strings.ToLower(strings.TrimSpace(s))) }

// leftOver tells of what is set for an experiment and stays, and of what the machine should decide.
func leftOver(v *Variable, s *Setting) []Finding {
	if s.Open || s.Hidden || v.Layer == "process" || v.Status == Foreign || isDefault(v, s.Value) {
		return nil
	}
	switch {
	case v.Name == "NCCL_DEBUG" && slices.Contains([]string{"INFO", "TRACE", "ABORT"}, strings.ToUpper(strings.TrimSpace(s.Value))):
		return []Finding{s.about(Note, "left-over", "a log of this level is for diagnosis: large jobs drown in it").do("production: NCCL_DEBUG=WARN")}
	case v.Name == "NCCL_DEBUG" && strings.EqualFold(s.Value, "NONE"):
		return nil
	case v.Class == Compare:
		return []Finding{s.about(Odd, "left-over", "meant for comparing and diagnosing, then to be removed: left in, it hurts other sizes, versions or machines").
			do("remove it, or show with two whole curves that it is needed")}
	case v.Class == Rare:
		text := "the default comes from the machine and is seldom wrong"
		if v.Default != "" && v.Default != "config" && v.Default[0] != '-' {
			text += " (here " + v.Default + ")"
		}
		return []Finding{s.about(Note, "rare", "%s", text)}
	}
	return nil
}

// view answers questions about settings for the table of conflicts.
type view struct {
	src     *Source
	version Version
}

func (w view) set(name string) bool { return w.value(name) != "" }

func (w view) value(name string) string {
	if s := w.src.Get(name); s != nil && !s.Open && !s.Hidden {
		return strings.TrimSpace(s.Value)
	}
	return ""
}

// number is the value as NCCL reads it, or otherwise where it is not set.
func (w view) number(name string, otherwise int64) int64 {
	s := w.value(name)
	if s == "" {
		return otherwise
	}
	n, _, _, _ := cInt(s)
	return n
}

// is tells whether a number is set and has this value.
func (w view) is(name string, n int64) bool { return w.set(name) && w.number(name, n+1) == n }

func (w view) torch(name string, otherwise bool) bool {
	if !w.set(name) {
		return otherwise
	}
	return truth(w.value(name))
}

// these returns those of names that are set.
func (w view) these(names ...string) []string {
	var set []string
	for _, n := range names {
		if w.set(n) {
			set = append(set, n)
		}
	}
	return set
}

// conflicts finds settings that contradict each other or make each other useless.
func conflicts(src *Source, version Version) []Finding {
	w := view{src, version}
	var found []Finding
	for _, r := range rules {
		name, text := r.when(w)
		if text == "" {
			continue
		}
		s := src.Get(name)
		if s == nil {
			continue
		}
		found = append(found, s.about(r.severity, r.id, "%s", text).do("%s", r.advice))
	}
	return found
}

// rule is a conflict: when names the variable to blame and says what is wrong, or returns an empty text.
type rule struct {
	id, severity, advice string
	when                 func(w view) (name, text string)
}

// together blames the variables that are pointless while another setting stands.
func together(w view, cause string, names ...string) (string, string) {
	these := w.these(names...)
	if len(these) == 0 {
		return "", ""
	}
	verb := "has"
	if len(these) > 1 {
		verb = "have"
	}
	return these[0], fmt.Sprintf("%s %s no effect: %s", strings.Join(these, ", "), verb, cause)
}
