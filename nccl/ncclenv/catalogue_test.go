package ncclenv

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// reference is the table that was made from NCCL's sources, where it lies beside the checkout.
func reference(t *testing.T) []map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "reference", "nccl_env.tsv"))
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the table of NCCL's variables must be there in CI: %v", err)
		}
		t.Skipf("no table of NCCL's variables to compare with: %v", err)
	}
	rows := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	keys := strings.Split(rows[0], "\t")
	var out []map[string]string
	for _, r := range rows[1:] {
		row := map[string]string{}
		for i, cell := range strings.Split(r, "\t") {
			row[keys[i]] = cell
		}
		out = append(out, row)
	}
	return out
}

// constants of NCCL's source that the reference has by name.
var constants = map[string]string{
	"(unset)": "", "(unset: communicator config)": "config", "-": "", "(none)": "", "NCCL_CONFIG_UNDEF_INT": "config", "MAXCHANNELS": "64",
	"PXB (SYS on AMD CPUs with at most 2 GPUs)": "PXB", "(PXB; P2C when NET_GDR_C2C applies)": "PXB", "SHM_RECV_SIDE": "2", "SHM_SEND_SIDE": "1",
	"cudaLaunchMemSyncDomainRemote": "1", "INT64_MAX": "9223372036854775807", "NCCL_WORK_FIFO_BYTES_DEFAULT": "1048576", "NCCL_MAX_DEV_WORK_P2P_PER_BATCH": "8",
	"NCCL_GROUP_CUDA_STREAM": "0", "INIT|BOOTSTRAP|ENV": "INIT,BOOTSTRAP,ENV", "(1u << NCCL_LOG_WARN)": "WARN", "(stdout)": "stdout",
	"DEFAULT_BUFFER_SIZE_BYTES": "4194304", "DEFAULT_MIN_NRINGS": "4", "false": "0", "PATH_PHB": "PHB",
}

// evaluate turns a default as the source writes it into the value.
func evaluate(s string) string {
	if v, ok := constants[s]; ok {
		return v
	}
	e := strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(s, "LL", ""), "("), ")")
	for _, op := range []string{"<<", "*"} {
		parts := strings.Split(e, op)
		if len(parts) < 2 {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(parts[0]), 10, 64)
		for _, p := range parts[1:] {
			m, err2 := strconv.ParseInt(strings.TrimSpace(p), 10, 64)
			if err != nil || err2 != nil {
				return s
			}
			if op == "*" {
				n *= m
			} else {
				n <<= m
			}
		}
		return strconv.FormatInt(n, 10)
	}
	return s
}

// history turns "2.3.5:14; 2.14.3:18" into our form; what the source reads as text has no value to compare.
func history(s string) []Change {
	var out []Change
	for _, item := range strings.Split(s, "; ") {
		at, value, ok := strings.Cut(item, ":")
		if !ok || value == "(string)" || value == "nullptr" || strings.HasPrefix(value, "NCCL_LOG") || strings.HasPrefix(value, `"`) {
			continue
		}
		since, _ := ParseVersion(at)
		if value = evaluate(value); len(out) == 0 || out[len(out)-1].Default != value {
			out = append(out, Change{since, value})
		}
	}
	if len(out) < 2 {
		return nil
	}
	return out
}

// Every variable of the reference is here, with the same facts, and we have no other that claims to be NCCL's.
func TestCatalogueIsComplete(t *testing.T) {
	rows := reference(t)
	names := map[string]bool{}
	for _, row := range rows {
		name := row["name"]
		names[name] = true
		v := Lookup(name)
		if v == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		same := func(field, got, want string) {
			if got != want {
				t.Errorf("%s: %s is %q, the reference has %q", name, field, got, want)
			}
		}
		status := map[string][]string{"current": {Current, Deprecated, Unread}, "removed": {Removed}, "documented-only": {Gone}, "not-nccl": {Foreign}}[row["status"]]
		if !slices.Contains(status, v.Status) {
			t.Errorf("%s: status %s, the reference has %s", name, v.Status, row["status"])
		}
		same("default", v.Default, evaluate(row["default"]))
		documented := map[string]string{"old docs": "old", "in docs, not in source": "old"}[row["documented"]]
		if documented == "" {
			documented = row["documented"]
		}
		same("documented", v.Documented, documented)
		if !slices.Equal(v.History, history(row["default_history"])) {
			t.Errorf("%s: history %v, the reference has %q", name, v.History, row["default_history"])
		}
		if row["status"] == "current" || row["status"] == "removed" {
			same("since", v.Since.String(), row["since"])
			last := row["last"]
			if last == Known {
				last = ""
			}
			same("last", v.Last.String(), last)
		}
		switch kind := row["kind"]; kind {
		case "int":
			if !v.integer() {
				t.Errorf("%s: type %s, the reference has a number", name, v.Type)
			}
		case "string", "typed":
			if v.integer() && name != "CUDA_LAUNCH_BLOCKING" {
				t.Errorf("%s: type %s, the reference has %s", name, v.Type, kind)
			}
		case "path-level":
			if v.Type != typeLevel && name != "NCCL_P2P_DISABLE" {
				t.Errorf("%s: type %s, the reference has a distance", name, v.Type)
			}
		}
	}
	for _, v := range Variables() {
		if v.NCCL() && !names[v.Name] {
			t.Errorf("%s is not in the reference", v.Name)
		}
	}
	if len(rows) < 290 {
		t.Errorf("the reference has only %d rows", len(rows))
	}
}

// The table itself: every cell is one that the code understands.
func TestCatalogueCells(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(catalogueTSV, "\n"), "\n")
	if want := "name\tstatus\tsince\tlast\tdocumented\ttype\tdefault\thistory\tvalues\tunit\tlayer\tclass\treplaced\tdoes"; lines[0] != want {
		t.Fatalf("first line %q", lines[0])
	}
	if !slices.IsSorted(lines[1:]) {
		t.Error("not in order of names")
	}
	layers := map[string]bool{}
	for _, l := range Layers {
		layers[l.Name] = false
	}
	statuses, classes := []string{Current, Deprecated, Unread, Removed, Gone, Foreign}, []string{Production, Compare, Rare}
	choice := regexp.MustCompile(`^(-?\d+(\.\.\d*)?|[A-Za-z0-9_:]+)(=.+)?$`)
	for i, line := range lines[1:] {
		c := strings.Split(line, "\t")
		if len(c) != 14 {
			t.Fatalf("line %d has %d cells", i+2, len(c))
		}
		v := Lookup(c[0])
		_, known := layers[v.Layer]
		layers[v.Layer] = true
		for what, bad := range map[string]bool{
			"name": !namePattern.MatchString(v.Name), "status": !slices.Contains(statuses, v.Status), "layer": !known, "class": !slices.Contains(classes, v.Class),
			"type": typeTells[v.Type] == "", "since": c[2] != v.Since.String(), "last": c[3] != v.Last.String(),
			"description":                      !strings.HasSuffix(v.Description, ".") || len(v.Description) < 20 || len(v.Description) > 220,
			"since of a variable that is read": v.NCCL() && v.Status == Current && v.Since.IsZero(),
			"last of a variable that is read":  v.Status == Current && !v.Last.IsZero(),
			"replacement":                      v.Status == Deprecated && v.Replaced == nil && v.Name != "NCCL_LAUNCH_MODE" && v.Name != "TORCH_NCCL_AVOID_RECORD_STREAMS",
		} {
			if bad {
				t.Errorf("%s: %s", v.Name, what)
			}
		}
		for _, item := range split(c[8], ";") {
			if !choice.MatchString(item) {
				t.Errorf("%s: value %q", v.Name, item)
			}
		}
		for _, r := range v.Replaced {
			if Lookup(r) == nil {
				t.Errorf("%s: replaced by %s, which is not here", v.Name, r)
			}
		}
		// A default must be a value that the check lets pass.
		if d := v.Default; d != "" && d != "config" && v.Status == Current && v.Type != typePath {
			s := Setting{Name: v.Name, Value: d, From: "x"}
			for _, f := range checkValue(v, &s, Version{}) {
				if f.ID != "prefix-match" && f.ID != "tilde" {
					t.Errorf("%s: the default %s gives %s: %s", v.Name, d, f.ID, f.Text)
				}
			}
		}
	}
	for l, used := range layers {
		if !used {
			t.Errorf("no variable is of layer %s", l)
		}
	}
}

// explain's list of conflicts names whatever the rules look at.
func TestRelatedMatchesRules(t *testing.T) {
	for _, tt := range planted {
		for _, want := range strings.Split(tt.want, ";") {
			f := strings.Fields(want)
			if len(f) != 3 || !strings.HasPrefix(f[1], "conflict") && f[1] != "two-names" || f[1] == "conflict-blocking" {
				continue
			}
			for _, item := range splitEnv(tt.env) {
				if name, _, _ := strings.Cut(item, "="); name != f[2] && !slices.Contains(Related(f[2]), name) {
					t.Errorf("%s: explain %s does not name %s", tt.env, f[2], name)
				}
			}
		}
	}
	for _, pair := range relatedPairs {
		for _, n := range slices.Concat(pair[0], pair[1]) {
			if Lookup(n) == nil {
				t.Errorf("%s is not in the catalogue", n)
			}
		}
	}
}

func TestNearest(t *testing.T) {
	for name, want := range map[string]string{
		"NCCL_DEBUG_SUBSYSTEM": "NCCL_DEBUG_SUBSYS", "NCCL_DEBG": "NCCL_DEBUG", "NCCL_SOKET_IFNAME": "NCCL_SOCKET_IFNAME", "NCCL_P2P_DISALBE": "NCCL_P2P_DISABLE",
		"NCCL_DISABLE_IB": "NCCL_IB_DISABLE", "NCL_DEBUG": "NCCL_DEBUG", "nccl_algos": "NCCL_ALGO", "NCCL_NVLS_ENABLED": "NCCL_NVLS_ENABLE",
		"TORCH_NCCL_ENABLE_MONITOR": "TORCH_NCCL_ENABLE_MONITORING", "NCCL_IB_GID_INDX": "NCCL_IB_GID_INDEX", "NCCL_GID_INDEX": "NCCL_IB_GID_INDEX",
		"NCCL_BUFFER_SIZE": "NCCL_BUFFSIZE", "NCCL_BUFSIZE": "NCCL_BUFFSIZE",
	} {
		if got := Nearest(name); len(got) == 0 || got[0] != want {
			t.Errorf("%s: %v, want %s first", name, got, want)
		}
	}
	for _, name := range []string{"NCCL_MAGIC_CARPET", "RCCL_DEBUG", "CNCL_DEBUG", "NCCL_", "NCCL", "", "_", "NCCL_X", "PATH", "HCCL_ALGO"} {
		if got := Nearest(name); len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestVersion(t *testing.T) {
	for in, want := range map[string]string{"2.21.5": "2.21.5", "v2.21.5-1": "2.21.5", "2.21.5+cuda12.4": "2.21.5", "2.21": "2.21", "22105": "2.21.5", "2708": "2.7.8", "2.18.0": "2.18"} {
		if v, ok := ParseVersion(in); !ok || v.String() != want {
			t.Errorf("%s: %v %v", in, v, ok)
		}
	}
	for _, in := range []string{"", "2", "two", "2.x", "2.1.2.3", "-2.1", "2.-1", "99999999"} {
		if v, ok := ParseVersion(in); ok {
			t.Errorf("%q: %v", in, v)
		}
	}
	if !(Version{2, 9, 9}).Before(Version{2, 10, 3}) || (Version{2, 10, 3}).Before(Version{2, 10, 3}) {
		t.Error("order of versions")
	}
}

func TestCInt(t *testing.T) {
	for in, want := range map[string]struct {
		n        int64
		rest     string
		ok, over bool
	}{
		"12": {12, "", true, false}, " -7x": {-7, "x", true, false}, "0x1F": {31, "", true, false}, "010": {8, "", true, false}, "08": {0, "8", true, false},
		"0": {0, "", true, false}, "0x": {0, "x", true, false}, "+3": {3, "", true, false}, "true": {0, "true", false, false}, "": {0, "", false, false}, "-": {0, "-", false, false},
		"4M": {4, "M", true, false}, "9223372036854775808": {1<<63 - 1, "", true, true},
	} {
		n, rest, ok, over := cInt(in)
		if n != want.n || rest != want.rest || ok != want.ok || over != want.over {
			t.Errorf("%q: %d %q %v %v", in, n, rest, ok, over)
		}
	}
}

// golden compares with testdata/NAME; -update writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update rewrites it); got\n%s", path, got)
	}
}

func TestGoldenExplain(t *testing.T) {
	var b strings.Builder
	for _, n := range []string{"NCCL_IB_HCA", "ib_timeout", "nccl_algo", "NCCL_MIN_NRINGS", "NCCL_IB_CUDA_SUPPORT", "NCCL_TIMEOUT", "NCCL_FASTRAK_IFNAME", "TORCH_FR_BUFFER_SIZE",
		"FR_BUFFER_SIZE", "NCCL_MAX_CTAS", "CUDA_VISIBLE_DEVICES", "NCCL_SET_THREAD_NAME", "NCCL_SINGLE_RING_THRESHOLD", "NVLS_*"} {
		found := Find(n)
		if len(found) == 0 {
			t.Errorf("nothing for %s", n)
		}
		for _, v := range found {
			if err := Explain(&b, v); err != nil {
				t.Fatal(err)
			}
			b.WriteByte('\n')
		}
	}
	golden(t, "explain.golden", b.String())
	b.Reset()
	if err := List(&b, Find("NCCL_SOCKET_*")); err != nil {
		t.Fatal(err)
	}
	golden(t, "list.golden", b.String())
}

func TestGoldenProfiles(t *testing.T) {
	for _, p := range Profiles {
		text, _ := Profile(p)
		golden(t, "profile-"+p+".golden", text)
	}
}
