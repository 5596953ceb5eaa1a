package ncclenv

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// settings is what is in force, NAME=value@line.
func settings(src *Source) string {
	var out []string
	for _, s := range src.Settings {
		item := s.Name + "=" + s.Value
		if s.Line > 0 {
			item += "@" + strconv.Itoa(s.Line)
		}
		if s.Open {
			item += "?"
		}
		out = append(out, item)
	}
	return strings.Join(out, " | ")
}

func TestReadFormats(t *testing.T) {
	for _, tt := range []struct {
		name, file, text, kind, want, found string
	}{
		{"output of env", "env.txt", "PATH=/bin\nNCCL_DEBUG=WARN\nTOKEN=secret\nNCCL_IB_HCA==mlx5_0\n", "variables", "NCCL_DEBUG=WARN@2 | NCCL_IB_HCA==mlx5_0@4", ""},
		{"env file of a container", "c.env", "# NCCL_DEBUG=INFO\nNCCL_DEBUG=\"WARN\"\r\n", "variables", `NCCL_DEBUG="WARN"@2`, ""},
		{"blank before =", "c.env", "NCCL_DEBUG =WARN\n", "variables", "", "fault name-blank NCCL_DEBUG"},
		{"byte order mark", "c.env", "\ufeffNCCL_DEBUG=WARN\n", "variables", "NCCL_DEBUG=WARN@1", ""},
		{"script", "job.sh", "#!/bin/bash\nexport NCCL_DEBUG=\"WARN\" # loud\nexport NCCL_IB_HCA='=mlx5_0,mlx5_1' NCCL_IB_TC=106; export NCCL_SOCKET_IFNAME=$IF\n", "script",
			"NCCL_DEBUG=WARN@2 | NCCL_IB_HCA==mlx5_0,mlx5_1@3 | NCCL_IB_TC=106@3 | NCCL_SOCKET_IFNAME=$IF@3?", ""},
		{"the last one counts in a script", "job.sh", "export NCCL_DEBUG=INFO\nexport NCCL_DEBUG=WARN\n", "script", "NCCL_DEBUG=WARN@2", ""},
		{"unset", "job.sh", "export NCCL_DEBUG=INFO NCCL_NET=IB\nunset NCCL_DEBUG\nexport NCCL_NET=Socket\n", "script", "NCCL_NET=Socket@3", ""},
		{"declare", "shell.txt", "declare -x NCCL_DEBUG=\"WARN\"\ndeclare -x SECRET=\"x\"\n", "script", "NCCL_DEBUG=WARN@1", ""},
		{"csh", "job.csh", "setenv NCCL_DEBUG WARN\n", "script", "NCCL_DEBUG=WARN@1", ""},
		{"assigned, exported later", "job.sh", "NCCL_DEBUG=WARN\nexport NCCL_DEBUG\n", "script", "NCCL_DEBUG=WARN@1", ""},
		{"set -a", "job.sh", "set -a\nNCCL_DEBUG=WARN\nexport NCCL_NET=IB\n", "script", "NCCL_DEBUG=WARN@2 | NCCL_NET=IB@3", ""},
		{"not exported", "job.sh", "export NCCL_NET=IB\nNCCL_DEBUG=WARN\nsrun ./train\n", "script", "NCCL_NET=IB@1", "fault not-exported NCCL_DEBUG"},
		{"in front of a command", "job.sh", "#!/bin/sh\nNCCL_DEBUG=WARN NCCL_NET=IB mpirun -np 2 ./a\n", "script", "NCCL_DEBUG=WARN@2 | NCCL_NET=IB@2", ""},
		{"blanks around =", "job.sh", "export NCCL_DEBUG = WARN\nexport NCCL_NET= IB\n", "script", "NCCL_NET=@2", "fault shell-space NCCL_DEBUG; fault shell-space NCCL_NET"},
		{"mpirun over lines", "job.sh", "mpirun -np 8 -x NCCL_DEBUG=WARN \\\n  -x LD_LIBRARY_PATH -x NCCL_IB_HCA==mlx5_0 \\\n  ./all_reduce_perf\n", "script", "NCCL_DEBUG=WARN@1 | NCCL_IB_HCA==mlx5_0@1", ""},
		{"mpiexec of Intel", "job.sh", "mpiexec -genv NCCL_DEBUG WARN -n 2 ./a\n", "script", "NCCL_DEBUG=WARN@1", ""},
		{"docker run", "run.sh", "docker run --rm -e NCCL_DEBUG=WARN --env=NCCL_NET=IB image env NCCL_IB_TC=106 ./a\n", "script", "NCCL_DEBUG=WARN@1 | NCCL_IB_TC=106@1 | NCCL_NET=IB@1", ""},
		{"Slurm", "job.sbatch", "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --export=ALL,NCCL_DEBUG=WARN,NCCL_NET=IB\nsrun --export=ALL,NCCL_IB_TC=106 ./a\n", "script", "NCCL_DEBUG=WARN@3 | NCCL_IB_TC=106@4 | NCCL_NET=IB@3", ""},
		{"Slurm cuts at commas", "job.sbatch", "#SBATCH --export=ALL,NCCL_IB_HCA==mlx5_0,mlx5_1\n", "script", "NCCL_IB_HCA==mlx5_0@1", "fault slurm-comma NCCL_IB_HCA"},
		{"Dockerfile", "Dockerfile", "FROM nvcr\nENV NCCL_DEBUG=WARN NCCL_NET=IB\nENV NCCL_IB_TC 106\n", "script", "NCCL_DEBUG=WARN@2 | NCCL_IB_TC=106@3 | NCCL_NET=IB@2", ""},
		{"Kubernetes", "pod.yaml", "spec:\n  env:\n  - name: NCCL_DEBUG\n    value: \"WARN\"\n  - name: PASSWORD\n    value: x\n  - name: NCCL_IB_TC\n    value: '106' # dscp\n", "variables", "NCCL_DEBUG=WARN@4 | NCCL_IB_TC=106@8", ""},
		{"YAML pairs", "values.yaml", "env:\n  NCCL_DEBUG: WARN # all\n  NCCL_NET: \"IB\"\n", "variables", "NCCL_DEBUG=WARN@2 | NCCL_NET=IB@3", ""},
		{"settings file", "nccl.conf", "# c\nNCCL_DEBUG=WARN\nNCCL_DEBUG=INFO\nexport NCCL_NET=IB\nNCCL_IB_TC =106\n NCCL_IB_SL=1\nNCCL_IB_HCA\nOTHER=x\nNCCL_SOCKET_IFNAME==eth0\n", "settings file",
			"NCCL_DEBUG=WARN@2 | NCCL_SOCKET_IFNAME==eth0@9", "warning conf-twice NCCL_DEBUG; fault conf-export NCCL_NET; fault name-blank NCCL_IB_TC; fault name-blank NCCL_IB_SL; fault conf-line NCCL_IB_HCA"},
		{"settings file from Windows", ".nccl.conf", "NCCL_DEBUG=WARN\r\nNCCL_NET=IB\r\n", "settings file", "NCCL_DEBUG=WARN@1 | NCCL_NET=IB@2", "warning conf-crlf"},
		{"settings file that names another", "nccl.conf", "NCCL_CONF_FILE=/x\n", "settings file", "", "fault conf-nested NCCL_CONF_FILE"},
		{"settings file with a long value", "nccl.conf", "NCCL_HOSTID=" + strings.Repeat("x", 1100) + "\n", "settings file", "NCCL_HOSTID=" + strings.Repeat("x", 1023) + "@1", "fault conf-long NCCL_HOSTID"},
		{"copy of environ", "environ", "PATH=/bin\x00NCCL_DEBUG=WARN\x00NCCL_DEBUG=INFO\x00S=\nNCCL_NET=IB\x00", "variables", "NCCL_DEBUG=WARN", ""},
		{"JSON list", "e.json", `["NCCL_DEBUG=WARN","X=y"]`, "json", "NCCL_DEBUG=WARN", ""},
		{"JSON map", "e.json", `{"NCCL_DEBUG":"WARN","NCCL_IB_TC":106,"PASSWORD":"x"}`, "json", "NCCL_DEBUG=WARN | NCCL_IB_TC=106", ""},
		{"JSON names and values", "e.json", `[{"name":"NCCL_DEBUG","value":"WARN"},{"name":"NCCL_NET","value":"IB"}]`, "json", "NCCL_DEBUG=WARN | NCCL_NET=IB", ""},
		{"docker inspect", "d.json", `[{"Id":"1","Name":"/a","Config":{"Env":["NCCL_DEBUG=WARN","KEY=x"]}}]`, "json", "NCCL_DEBUG=WARN", ""},
		{"empty", "x", "", "variables", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sources, err := Read(strings.NewReader(tt.text), tt.file)
			if err != nil || len(sources) != 1 {
				t.Fatalf("%v, %d sources", err, len(sources))
			}
			src := sources[0]
			if got := settings(src); got != tt.want || src.Kind != tt.kind {
				t.Errorf("%s: %s\nwant %s: %s", src.Kind, got, tt.kind, tt.want)
			}
			if got := list(src.Found); got != sorted(tt.found) {
				t.Errorf("found\n%s\nwant\n%s", got, sorted(tt.found))
			}
		})
	}
}

func TestReadSeveral(t *testing.T) {
	pods := `{"items":[{"metadata":{"name":"w0"},"spec":{"containers":[{"name":"c","env":[{"name":"NCCL_ALGO","value":"ring"}]}]}},
		{"metadata":{"name":"w1"},"spec":{"containers":[{"name":"c","env":[{"name":"NCCL_ALGO","value":"tree"}]}]}}]}`
	sources, err := Read(strings.NewReader(pods), "pods.json")
	if err != nil || len(sources) != 2 || sources[0].Name != "w0" || settings(sources[1]) != "NCCL_ALGO=tree" {
		t.Fatalf("%v %+v", err, sources)
	}
	if got := list(Differences(sources)); got != "fault host-differs NCCL_ALGO" {
		t.Error(got)
	}
	sources, err = Read(strings.NewReader("0: NCCL_NET=IB\n 10: NCCL_NET=IB\n2: NCCL_NET=Socket\n2: KEY=x\n0: NCCL_DEBUG=WARN\n"), "stdin")
	if err != nil || len(sources) != 3 || sources[1].Name != "rank 2" || settings(sources[0]) != "NCCL_DEBUG=WARN@5 | NCCL_NET=IB@1" || sources[2].Name != "rank 10" {
		t.Errorf("%v %+v", err, sources)
	}
}

const logText = `NCCL version 2.21.5+cuda12.4
[rank0]: node1:100:200 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^docker0,lo
node1:100:200 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
node1:101:201 [1] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
node2:100:200 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 18.
node2:100:200 [0] NCCL INFO NCCL_ALGO set by environment to Tree
node2:101:201 [0] NCCL INFO NCCL_ALGO set by environment to Ring
` + "\x1b[36mnode2:100:200 [0] NCCL INFO NCCL_IB_HCA set to =mlx5_0\x1b[0m\n" + `node1:100:200 [0] NCCL INFO Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default -2.
node1:100:200 [0] NCCL INFO Comm config Min CTAs reset to NCCL_MIN_CTAS=4
torn3:1:2 [0] NCCL INFO Channel 00/02 : 0 1
node1:100:200 [0] NCCL INFO comm 0x1 rank 0 nranks 2 set to something
`

func TestReadLog(t *testing.T) {
	sources, err := Read(strings.NewReader(logText), "nccl.log")
	if err != nil || len(sources) != 2 {
		t.Fatalf("%v, %d sources", err, len(sources))
	}
	want := []string{"NCCL_BUFFSIZE=99999999999999999999@9 | NCCL_IB_TIMEOUT=22@3 | NCCL_MIN_CTAS=4@10 | NCCL_SOCKET_IFNAME=^docker0,lo@2", "NCCL_ALGO=Tree@6 | NCCL_IB_HCA==mlx5_0@8 | NCCL_IB_TIMEOUT=18@5"}
	for i, src := range sources {
		if got := settings(src); got != want[i] || src.Kind != "log" || !src.Partial || src.NCCL.String() != "2.21.5" {
			t.Errorf("%s %s %v: %s\nwant %s", src.Name, src.Kind, src.NCCL, got, want[i])
		}
	}
	r := NewReport(sources, Version{})
	if got := list(slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.ID == "rare" || f.ID == "left-over" })); got != sorted(
		"fault range NCCL_BUFFSIZE; warning host-differs NCCL_IB_TIMEOUT; warning differs-within NCCL_ALGO") {
		t.Error(got)
	}
}

// What is no variable of NCCL, or may be a secret, is neither kept nor shown, whatever the file looks like.
func TestSecretsStayOut(t *testing.T) {
	const secret = "hunter2"
	texts := map[string]string{
		"env":       "API_KEY=" + secret + "\nNCCL_API_TOKEN=" + secret + "\nUCX_X=" + secret + "\nNVSHMEM_Y=" + secret + "\nNCCL_DEBUG=WARN\nHOME=/home/" + secret + "\n",
		"job.sh":    "export API_KEY=" + secret + "\nexport NCCL_DEBUG=WARN DB_PASSWORD='" + secret + "'\ncurl -H 'X: " + secret + "' # NCCL_\nPASS=" + secret + "\n",
		"nccl.conf": secret + "\n" + secret + "=1\nAPI_KEY=" + secret + "\nAPI_KEY=x" + secret + "\nexport API_KEY=" + secret + "\n API_KEY =" + secret + "\nPW=" + strings.Repeat(secret, 1000) + "\n",
		"e.json":    `{"Env":["A=` + secret + `","NCCL_PASSWORD=` + secret + `"],"cmd":"` + secret + `","name":"KEY","value":"` + secret + `"}`,
		"p.yaml":    "- name: KEY\n  value: " + secret + "\nNCCL_DEBUG: WARN\nkey: " + secret + "\n",
		"environ":   "A=" + secret + "\x00NCLL_SECRETS=" + secret + "\x00UCX_A=" + secret + "\x00",
		"n.log":     "h:1:2 [0] NCCL INFO API_KEY set by environment to " + secret + "\nh:1:2 [0] NCCL INFO NCCL_DEBUG set by environment to WARN\n" + secret + "\n",
	}
	for name, text := range texts {
		sources, err := Read(strings.NewReader(text), name)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		r := NewReport(sources, Version{})
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		doc, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String()+string(doc), secret) {
			t.Errorf("%s: a secret is shown:\n%s\n%s", name, b.String(), doc)
		}
	}
	src := FromEnvironment([]string{"API_KEY=" + secret, "NCCL_DEBUG=WARN", "UCX_TLS=" + secret, "NCCL_TOKEN=" + secret}, Place{Root: t.TempDir()}, Version{})
	if got := settings(src); got != "NCCL_DEBUG=WARN | NCCL_TOKEN=" || !slices.Equal(src.Hints, []string{"UCX_TLS"}) {
		t.Error(got, src.Hints)
	}
}

func TestPrecedence(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		env           []string
		files         map[string]string
		want, found   string
	}{
		{"system alone", "", []string{"HOME=/home/u"}, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\n"}, "NCCL_DEBUG=WARN@1", ""},
		{"the home goes before the system", "", []string{"HOME=/home/u"}, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\nNCCL_NET=IB\n", "home/u/.nccl.conf": "NCCL_DEBUG=INFO\n"},
			"NCCL_DEBUG=INFO@1 | NCCL_NET=IB@2", "note shadowed NCCL_DEBUG"},
		{"the environment goes before both", "", []string{"HOME=/home/u", "NCCL_DEBUG=VERSION"}, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\n", "home/u/.nccl.conf": "NCCL_DEBUG=INFO\n"},
			"NCCL_DEBUG=VERSION", "warning shadowed NCCL_DEBUG; warning shadowed NCCL_DEBUG"},
		{"equal values disturb nobody", "", []string{"HOME=/home/u", "NCCL_DEBUG=WARN"}, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\n", "home/u/.nccl.conf": "NCCL_DEBUG=WARN\n"}, "NCCL_DEBUG=WARN", ""},
		{"an empty variable shuts the file out", "", []string{"HOME=/home/u", "NCCL_DEBUG="}, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\n"}, "NCCL_DEBUG=", "warning shadowed NCCL_DEBUG"},
		{"NCCL_CONF_FILE replaces the home", "", []string{"HOME=/home/u", "NCCL_CONF_FILE=/site/n.conf"},
			map[string]string{"etc/nccl.conf": "NCCL_NET=IB\nNCCL_IB_TC=106\n", "home/u/.nccl.conf": "NCCL_DEBUG=INFO\n", "site/n.conf": "NCCL_NET=Socket\n"},
			"NCCL_CONF_FILE=/site/n.conf | NCCL_IB_TC=106@2 | NCCL_NET=Socket@1", "note shadowed NCCL_NET; note conf-ignored NCCL_CONF_FILE"},
		{"an old version does not know NCCL_CONF_FILE", "2.22.3", []string{"HOME=/home/u", "NCCL_CONF_FILE=/site/n.conf"},
			map[string]string{"home/u/.nccl.conf": "NCCL_DEBUG=WARN\n", "site/n.conf": "NCCL_NET=Socket\n"}, "NCCL_CONF_FILE=/site/n.conf | NCCL_DEBUG=WARN@1", ""},
		{"the file is missing, and the home is not read", "", []string{"HOME=/home/u", "NCCL_CONF_FILE=/site/n.conf"}, map[string]string{"home/u/.nccl.conf": "NCCL_DEBUG=INFO\n", "etc/nccl.conf": "NCCL_NET=IB\n"},
			"NCCL_CONF_FILE=/site/n.conf | NCCL_NET=IB@1", "fault conf-missing NCCL_CONF_FILE; note conf-ignored NCCL_CONF_FILE"},
		{"a tilde is no home", "", []string{"HOME=/home/u", "NCCL_CONF_FILE=~/n.conf"}, map[string]string{"home/u/n.conf": "NCCL_DEBUG=INFO\n"}, "NCCL_CONF_FILE=~/n.conf", ""},
		{"a directory", "", []string{"NCCL_CONF_FILE=/etc"}, map[string]string{"etc/x": ""}, "NCCL_CONF_FILE=/etc", "fault conf-unreadable"},
		{"no home", "", nil, map[string]string{".nccl.conf": "NCCL_DEBUG=INFO\n"}, "", ""},
		{"within a file the first one counts", "", []string{"HOME=/home/u"}, map[string]string{"home/u/.nccl.conf": "NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\n"}, "NCCL_DEBUG=INFO@1", "warning conf-twice NCCL_DEBUG"},
		{"carriage returns before 2.30.3", "2.28.3", nil, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\r\n"}, "NCCL_DEBUG=WARN@1", "fault conf-crlf"},
		{"carriage returns from 2.30.3 on", "2.30.7", nil, map[string]string{"etc/nccl.conf": "NCCL_DEBUG=WARN\r\n"}, "NCCL_DEBUG=WARN@1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				write(t, root, name, text)
			}
			v, _ := ParseVersion(tt.version)
			src := FromEnvironment(tt.env, Place{Root: root}, v)
			if got := settings(src); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
			if got := list(src.Found); got != sorted(tt.found) {
				t.Errorf("found\n%s\nwant\n%s", got, sorted(tt.found))
			}
		})
	}
	// Where a value is from is told with its file.
	root := t.TempDir()
	write(t, root, "etc/nccl.conf", "\nNCCL_NET=IB\n")
	if got := FromEnvironment([]string{"NCCL_DEBUG=WARN"}, Place{Root: root}, Version{}); got.Get("NCCL_NET").Where() != "/etc/nccl.conf:2" || got.Get("NCCL_DEBUG").Where() != "environment" {
		t.Errorf("%+v", got.Settings)
	}
}

func TestUnreadableSettingsFile(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	root := t.TempDir()
	write(t, root, "etc/nccl.conf", "NCCL_NET=IB\n")
	if err := os.Chmod(filepath.Join(root, "etc/nccl.conf"), 0); err != nil {
		t.Fatal(err)
	}
	src := FromEnvironment(nil, Place{Root: root}, Version{})
	if got := list(src.Found); got != "fault conf-unreadable" || !strings.Contains(src.Found[0].Text, "permission denied") {
		t.Errorf("%s %+v", got, src.Found)
	}
}

func TestFromProcess(t *testing.T) {
	proc := t.TempDir()
	write(t, proc, "42/environ", "HOME=/home/u\x00NCCL_IB_HCA=mlx5_1\x00SECRET=x\x00")
	write(t, proc, "42/root/etc/nccl.conf", "NCCL_DEBUG=WARN\n") // the container's, not ours
	write(t, proc, "42/root/sys/class/infiniband/mlx5_1/x", "")
	write(t, proc, "42/root/sys/class/infiniband/mlx5_12/x", "")
	src, err := FromProcess(proc, 42, Version{})
	if err != nil || src.Name != "process 42" || settings(src) != "NCCL_DEBUG=WARN@1 | NCCL_IB_HCA=mlx5_1" {
		t.Fatalf("%v %+v", err, src)
	}
	found := Check(src, Version{})
	if list(found) != "warning prefix-match NCCL_IB_HCA" || !strings.Contains(found[0].Text, "mlx5_12") || !strings.Contains(found[0].Advice, "=mlx5_1") {
		t.Errorf("%+v", found)
	}
	write(t, proc, "43/environ", "")
	for pid, says := range map[int]string{7: "no process 7", 43: "no environment"} {
		if _, err := FromProcess(proc, pid, Version{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%d: %v", pid, err)
		}
	}
	if self, err := FromProcess("/proc", os.Getpid(), Version{}); err != nil || self.Kind != "process" {
		t.Errorf("%v %+v", err, self)
	}
	if os.Getuid() != 0 {
		if _, err := FromProcess("/proc", 1, Version{}); err == nil || !strings.Contains(err.Error(), "another user") {
			t.Errorf("init: %v", err)
		}
	}
}

func TestDifferences(t *testing.T) {
	host := func(name, text string) *Source {
		sources, err := Read(strings.NewReader(text), name)
		if err != nil {
			t.Fatal(err)
		}
		return sources[0]
	}
	all := []*Source{
		host("a", "NCCL_ALGO=ring\nNCCL_IB_HCA==mlx5_0\nNCCL_IB_TC=106\nNCCL_HOSTID=x\nNCCL_BUFFSIZE=0x400000\n"),
		host("b", "NCCL_ALGO=ring\nNCCL_IB_HCA==mlx5_2\nNCCL_IB_TC=106\nNCCL_HOSTID=x\nNCCL_BUFFSIZE=4194304\n"),
		host("c", "NCCL_ALGO=tree\nNCCL_IB_HCA==mlx5_0\nNCCL_HOSTID=y\nNCCL_BUFFSIZE=4194304\n"),
	}
	found := Differences(all)
	if got := list(found); got != sorted("fault host-differs NCCL_ALGO; note host-differs NCCL_IB_HCA; warning host-differs NCCL_IB_TC; note host-differs NCCL_HOSTID; fault hostid-equal NCCL_HOSTID") {
		t.Error(got)
	}
	for _, f := range found {
		if want := map[string]string{"NCCL_ALGO": `"tree" on c; "ring" on a, b`, "NCCL_IB_TC": "not set on c; 106 on a, b"}[f.Name]; want != "" && f.Text != want {
			t.Errorf("%s: %s, want %s", f.Name, f.Text, want)
		}
	}
	if got := Differences(all[:1]); got != nil {
		t.Error(got)
	}
	if got := Differences([]*Source{all[0], all[0]}); list(got) != "fault hostid-equal NCCL_HOSTID" {
		t.Error(list(got))
	}
	all[0].NCCL, all[1].NCCL = Version{2, 21, 5}, Version{2, 28, 3}
	if got := list(Differences(all)); !strings.Contains(got, "fault version-differs") {
		t.Error(got)
	}
}

func TestSelected(t *testing.T) {
	names := []string{"eth0", "eth1", "eth10", "ib0", "lo"}
	for value, want := range map[string]string{"eth1": "eth1 eth10", "=eth1": "eth1", "^eth": "ib0 lo", "^=eth1,lo": "eth0 eth10 ib0", "ib,lo": "ib0 lo", "": "eth0 eth1 eth10 ib0 lo", "=nope": ""} {
		if got := strings.Join(Selected(value, names), " "); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}

// Real logs, where they lie beside the checkout: what they say was set is found.
func TestPublicLogs(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "shared", "data", "*", "*.txt"))
	if len(files) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("the public logs must be there in CI")
		}
		t.Skip("no public logs beside the checkout")
	}
	logs, set := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "set by environment to") {
			continue
		}
		logs++
		sources, err := Read(strings.NewReader(string(text)), file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		n := 0
		for _, src := range sources {
			n += len(src.Settings)
			for _, s := range src.Settings {
				if Lookup(s.Name) == nil {
					t.Errorf("%s: %s is not in the catalogue", file, s.Name)
				}
			}
			for _, f := range Check(src, src.NCCL) {
				if f.Severity == Fault && f.ID != "too-new" && f.ID != "wrong-kind" {
					t.Logf("%s: %s %s %s: %s", filepath.Base(file), f.Severity, f.ID, f.Name, f.Text)
				}
			}
		}
		if set += n; n == 0 {
			t.Errorf("%s: nothing found", file)
		}
	}
	if logs < 8 || set < 20 {
		t.Errorf("%d logs with %d settings", logs, set)
	}
}

// FuzzRead: no panic, an error or sources, sorted and unique names that may be shown, and a check and a text that come to an end.
func FuzzRead(f *testing.F) {
	f.Add([]byte(logText), "n.log", "2.21.5")
	f.Add([]byte("export NCCL_ALGO='ring;allreduce:^tree' NCCL_IB_HCA=mlx5_1\nNCCL_X = 1\nsrun --export=A,NCCL_B=1,2 \\\nx\n"), "a.sh", "")
	f.Add([]byte("NCCL_DEBUG=\"x\r\nNCCL_IB_TC=0106 # x\nNCCL_NET=~\nNCCL_COMM_ID=[::1]:2\n"), "nccl.conf", "2.30.7")
	f.Add([]byte(`[{"Name":"a","Config":{"Env":["NCCL_DEBUG=INFO"]}},{"name":"NCCL_ALGO","value":1}]`), "x.json", "")
	f.Add([]byte("A=b\x00NCCL_IB_HCA==a,^b:c:d;e\x00NCCL_PROXY_CPUSET=0-\x00"), "environ", "")
	f.Add([]byte("- name: NCCL_DEBUG\n  value: \"W\nNCCL_NET: 'IB\n"), "p.yaml", "")
	f.Fuzz(func(t *testing.T, data []byte, name, version string) {
		sources, err := Read(strings.NewReader(string(data)), name)
		if (err == nil) == (len(sources) == 0) {
			t.Fatalf("%d sources and error %v", len(sources), err)
		}
		for _, src := range sources {
			for i, s := range src.Settings {
				if !Interesting(s.Name) || i > 0 && src.Settings[i-1].Name >= s.Name {
					t.Fatalf("setting %q", s.Name)
				}
			}
		}
		v, _ := ParseVersion(version)
		r := NewReport(sources, v)
		for _, found := range r.Findings {
			if found.ID == "" || rank(found.Severity) < 0 || found.Text == "" {
				t.Fatalf("finding %+v", found)
			}
		}
		var b strings.Builder
		if err := r.WriteText(&b); err != nil || b.Len() == 0 {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		FromEnvironment(strings.Split(string(data), "\n"), Place{Root: "/nonexistent"}, v)
	})
}
