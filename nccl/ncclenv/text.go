package ncclenv

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Report is what a check yields.
type Report struct {
	NCCL     Version   `json:"nccl_version,omitzero"` // asked for, or told by a log
	Known    string    `json:"catalogue"`             // the version that the catalogue describes
	Sources  []*Source `json:"sources"`
	Findings []Finding `json:"findings"`
}

// NewReport checks each source and, if there are several, compares them. A zero version is replaced by what a log says.
func NewReport(sources []*Source, version Version) *Report {
	r := &Report{NCCL: version, Known: Known, Sources: sources, Findings: []Finding{}}
	for _, src := range sources {
		v := version
		if v.IsZero() {
			v = src.NCCL
		}
		if len(sources) == 1 {
			r.NCCL = v
		}
		for _, f := range Check(src, v) {
			if len(sources) > 1 {
				f.Host = src.Name
			}
			r.Findings = append(r.Findings, f)
		}
	}
	r.Findings = append(r.Findings, Differences(sources)...)
	Sort(r.Findings)
	return r
}

// WriteText writes a report for people: what is in force and from where, then the findings, the worst first.
func (r *Report) WriteText(w io.Writer) error {
	out := &writer{w: w}
	for _, src := range r.Sources {
		r.writeSource(out, src)
	}
	out.printf("\n%s\n", count(r.Findings))
	for _, f := range merge(r.Findings) {
		out.printf("\n%s", f.Severity)
		if f.Name != "" {
			out.printf("  %s", f.Name)
			if f.Value != "" {
				out.printf("=%s", printable(f.Value))
			}
		}
		var at []string
		for _, s := range []string{f.Host, shortWhere(f.From, f.Line)} {
			if s != "" && s != f.Name && !slices.Contains(at, s) {
				at = append(at, s)
			}
		}
		if len(at) > 0 {
			out.printf("  (%s)", strings.Join(at, ", "))
		}
		out.printf("  [%s]\n", f.ID)
		out.printf("   %s\n", wrap(f.Text, 3))
		if f.Advice != "" {
			out.printf("   → %s\n", wrap(f.Advice, 5))
		}
	}
	return out.err
}

func (r *Report) writeSource(out *writer, src *Source) {
	title := src.Name
	if title != src.Kind {
		title += " (" + src.Kind + ")"
	}
	if !src.NCCL.IsZero() {
		title += ", NCCL " + src.NCCL.String()
	}
	if len(src.Settings) == 0 {
		out.printf("%s: nothing of NCCL's is set\n", title)
	} else {
		out.printf("In force: %s\n", title)
	}
	nameWidth, valueWidth := 0, 0
	for _, s := range src.Settings {
		nameWidth = max(nameWidth, len(s.Name))
		valueWidth = max(valueWidth, min(len(printable(s.Value)), 40))
	}
	for _, s := range src.Settings {
		value := printable(s.Value)
		switch {
		case s.Hidden:
			value = "(not shown)"
		case value == "":
			value = "(empty)"
		}
		out.printf("   %-*s  %-*s  %s\n", nameWidth, s.Name, valueWidth, value, shortWhere(s.From, s.Line))
	}
	if len(src.Hints) > 0 {
		out.printf("   other libraries are set up here, too (values not shown): %s\n", strings.Join(src.Hints, ", "))
	}
}

// shortWhere leaves out the folders of a long path; the JSON has them.
func shortWhere(from string, line int) string {
	if len(from) > 40 {
		from = "…/" + path.Base(from)
	}
	return where(from, line)
}

// merge joins equal findings of several hosts.
func merge(found []Finding) []Finding {
	var out []Finding
	for _, f := range found {
		i := slices.IndexFunc(out, func(g Finding) bool {
			return g.ID == f.ID && g.Name == f.Name && g.Text == f.Text && g.Value == f.Value && g.Host != "" && f.Host != ""
		})
		if i < 0 {
			out = append(out, f)
		} else if !strings.Contains(", "+out[i].Host+",", ", "+f.Host+",") && len(out[i].Host) < 100 {
			out[i].Host += ", " + f.Host
		}
	}
	return out
}

func count(found []Finding) string {
	if len(found) == 0 {
		return "Nothing to remark."
	}
	var n [3]int
	for _, f := range found {
		n[rank(f.Severity)]++
	}
	var parts []string
	for i, word := range []string{"fault", "warning", "note"} {
		if n[i] == 1 {
			parts = append(parts, "1 "+word)
		} else if n[i] > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n[i], word))
		}
	}
	return strings.Join(parts, ", ")
}

// printable keeps a value from moving the cursor of a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// wrap breaks a text into lines of at most 110 letters, the later ones indented.
func wrap(s string, indent int) string {
	var b strings.Builder
	col := indent
	for i, word := range strings.Fields(printable(s)) {
		n := len([]rune(word))
		switch {
		case i == 0:
		case col+1+n > 110:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			col = indent
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(word)
		col += n
	}
	return b.String()
}

// writer keeps the first error.
type writer struct {
	w   io.Writer
	err error
}

func (w *writer) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

var classTells = map[string]string{
	Production: "set it for the site and leave it",
	Compare:    "for comparing and diagnosing: set it, compare, remove it",
	Rare:       "hardly ever touch: the default comes from the machine",
}

// Explain writes all that is known about a variable.
func Explain(w io.Writer, v *Variable) error {
	out := &writer{w: w}
	line := func(key, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			out.printf("   %-9s %s\n", key, wrap(text, 13))
		}
	}
	out.printf("%s\n   %s\n", v.Name, wrap(v.Description, 3))
	if v.Type != typeNone {
		line("written", "%s", typeTells[v.Type])
	}
	line("values", "%s", v.choices())
	line("unit", "%s", v.Unit)
	line("default", "%s", v.defaults())
	line("read by", "%s", v.reader())
	layer := v.Layer
	for _, l := range Layers {
		if l.Name == v.Layer {
			layer += " – " + l.Does
		}
	}
	line("layer", "%s", layer)
	if v.Status == Current || v.Status == Deprecated {
		line("when", "%s", classTells[v.Class])
	}
	if len(v.Replaced) > 0 {
		line("instead", "%s", strings.Join(v.Replaced, " or "))
	}
	line("conflicts", "%s", strings.Join(Related(v.Name), ", "))
	return out.err
}

func (v *Variable) defaults() string {
	s := v.Default
	switch {
	case v.Status == Foreign:
		return ""
	case s == "config":
		s = "what the program asks for, else NCCL decides"
	case s == "":
		s = "not set"
	}
	for _, c := range v.Values {
		if c.Value == s && c.Means != "" {
			s += " (" + c.Means + ")"
		}
	}
	if len(v.History) > 0 {
		var was []string
		for _, h := range v.History {
			value := h.Default
			if value == "config" {
				value = "the program's"
			}
			was = append(was, value+" from "+h.Since.String())
		}
		s += "; over time: " + strings.Join(was, ", ")
	}
	return s
}

func (v *Variable) reader() string {
	documented := map[string]string{"no": ", not documented", "mentioned": ", mentioned in the documents", "old": ", in old documents"}[v.Documented]
	switch {
	case v.Status == Foreign && v.Layer == "plugin":
		return "a plugin, not NCCL"
	case v.Status == Foreign && len(v.Replaced) > 0 && v.Layer == "torch":
		return "PyTorch, under protest"
	case v.Status == Foreign && v.Layer == "build":
		return "not by the library"
	case v.Status == Foreign:
		return "nobody"
	case v.Torch():
		return "PyTorch (defaults of 2.12)"
	case !v.NCCL():
		return "CUDA or the loader" + map[bool]string{true: "; NCCL looks at it"}[v.Layer != "process"]
	case v.Status == Gone:
		return "no NCCL since 2.10" + documented
	case v.Status == Removed:
		return fmt.Sprintf("NCCL %s to %s%s", v.Since, v.Last, documented)
	}
	return fmt.Sprintf("NCCL from %s on%s", v.Since, documented)
}

// Related returns the variables that one can be in conflict with, from a table in explain's order of names.
func Related(name string) []string {
	var out []string
	for _, pair := range relatedPairs {
		for i, group := range pair {
			if slices.Contains(group, name) {
				out = append(out, pair[1-i]...)
			}
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(n string) bool { return n == name })
}

// relatedPairs is which variables the rules of conflict.go set against which; a test runs the rules to see that none is missing here.
var relatedPairs = [][2][]string{
	{{"NCCL_IB_DISABLE", "NCCL_NET"}, ibSettings},
	{{"NCCL_NET"}, {"NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_NET_PLUGIN"}},
	{{"NCCL_IB_GID_INDEX"}, {"NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM"}},
	{{"NCCL_IB_SPLIT_DATA_ON_QPS"}, {"NCCL_IB_QPS_PER_CONNECTION"}},
	{{"NCCL_IB_AR_THRESHOLD"}, {"NCCL_BUFFSIZE", "NCCL_IB_ADAPTIVE_ROUTING"}},
	{{"NCCL_SOCKET_NTHREADS"}, {"NCCL_NSOCKS_PERTHREAD"}},
	{{"NCCL_PXN_DISABLE"}, {"NCCL_P2P_PXN_LEVEL", "NCCL_PXN_C2C"}},
	{{"NCCL_OOB_NET_IFNAME"}, {"NCCL_OOB_NET_ENABLE"}},
	{{"NCCL_COMM_ID"}, {"NCCL_SOCKET_IFNAME"}},
	{{"NCCL_P2P_DISABLE"}, {"NCCL_P2P_LEVEL", "NCCL_P2P_READ_ENABLE", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_P2P_DIRECT_DISABLE", "NCCL_SHM_DISABLE"}},
	{{"NCCL_SHM_DISABLE"}, {"NCCL_P2P_LEVEL"}},
	{{"NCCL_ALGO"}, {"NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE"}},
	{{"NCCL_NVLS_ENABLE"}, {"NCCL_CUMEM_ENABLE", "NCCL_NVLS_NCHANNELS", "NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE", "NCCL_MULTI_RANK_GPU_ENABLE"}},
	{{"NCCL_CUMEM_ENABLE"}, {"NCCL_MNNVL_ENABLE", "NCCL_WIN_ENABLE", "NCCL_WIN_STRIDE", "NCCL_SYM_KERNEL", "NCCL_CUMEM_HOST_ENABLE"}},
	{{"NCCL_NET_GDR_LEVEL"}, {"NCCL_NET_GDR_READ", "NCCL_NET_FORCE_FLUSH", "NCCL_GDRCOPY_FLUSH_ENABLE"}},
	{{"NCCL_GDRCOPY_ENABLE"}, {"NCCL_GDRCOPY_FLUSH_ENABLE", "NCCL_GDRCOPY_SYNC_ENABLE", "NCCL_GDRCOPY_FIFO_ENABLE"}},
	{{"NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"}, {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"}},
	{{"NCCL_MIN_NRINGS"}, {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS"}}, {{"NCCL_MAX_NRINGS"}, {"NCCL_MAX_NCHANNELS"}},
	{{"NCCL_MIN_P2P_NCHANNELS"}, {"NCCL_MAX_P2P_NCHANNELS"}},
	{{"NCCL_GRAPH_FILE"}, {"NCCL_CROSS_NIC", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"}},
	{{"NCCL_GRAPH_STREAM_ORDERING"}, {"NCCL_GRAPH_MIXING_SUPPORT"}},
	{{"NCCL_LAUNCH_RACE_FATAL"}, {"NCCL_LAUNCH_ORDER_IMPLICIT"}},
	{{"NCCL_DEBUG"}, {"NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS", "NCCL_WARN_ENABLE_DEBUG_INFO"}},
	{{"NCCL_CHECK_MODE"}, {"NCCL_CHECK_POINTERS"}},
	{{"NCCL_RAS_ENABLE"}, {"NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR"}},
	{{"NCCL_TOPO_DUMP_FILE_RANK"}, {"NCCL_TOPO_DUMP_FILE"}}, {{"NCCL_GRAPH_DUMP_FILE_RANK"}, {"NCCL_GRAPH_DUMP_FILE"}},
	{{"TORCH_NCCL_BLOCKING_WAIT"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DESYNC_DEBUG", "NCCL_BLOCKING_WAIT"}},
	{{"TORCH_NCCL_ASYNC_ERROR_HANDLING"}, {"TORCH_NCCL_DESYNC_DEBUG", "NCCL_ASYNC_ERROR_HANDLING"}},
	{{"TORCH_NCCL_DUMP_ON_TIMEOUT"}, {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}},
	{{"TORCH_NCCL_ENABLE_MONITORING"}, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_COORD_CHECK_MILSEC"}},
	{{"TORCH_FR_BUFFER_SIZE"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE"}}, {{"TORCH_FR_DUMP_TEMP_FILE"}, {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}},
}

// List writes one line a variable.
func List(w io.Writer, vars []*Variable) error {
	out := &writer{w: w}
	width := 0
	for _, v := range vars {
		width = max(width, len(v.Name))
	}
	width = min(width, 48)
	for _, v := range vars {
		mark := map[string]string{Production: "set", Compare: "compare", Rare: "rare"}[v.Class]
		if v.Status != Current && v.Status != Deprecated {
			mark = v.Status
		}
		out.printf("%-*s  %-8s %s\n", width, v.Name, mark, v.Description)
	}
	return out.err
}
