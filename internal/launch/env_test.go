package launch

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/internal/bootstrap"
)

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func torchEnv() map[string]string {
	return map[string]string{
		"TORCHELASTIC_RUN_ID": "job7", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
		"MASTER_ADDR": "node-0", "MASTER_PORT": "29500", "HOME": "/root",
	}
}

func TestFromEnvTorchrun(t *testing.T) {
	env := torchEnv()
	env["SLURM_PROCID"], env["SLURM_STEP_ID"], env["SLURM_NTASKS"] = "0", "0", "2" // torchrun under srun
	p, err := FromEnv(lookupIn(env))
	if err != nil {
		t.Fatal(err)
	}
	from := torchEnv()
	delete(from, "HOME")
	want := &Placement{
		Engine: "torchrun", Rank: 5, World: 8, LocalRank: 1, LocalWorld: 4, Rendezvous: "node-0:29501", JobID: "job7", From: from,
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	for addr, want := range map[string]string{"::1": "[::1]:29501", "[fe80::1]": "[fe80::1]:29501", "10.0.0.1": "10.0.0.1:29501"} {
		env["MASTER_ADDR"] = addr
		if p, err := FromEnv(lookupIn(env)); err != nil || p.Rendezvous != want {
			t.Errorf("%s: %v, %v", addr, p, err)
		}
	}
	// As PyTorchJob sets it: no run id, nothing local.
	p, err = FromEnv(lookupIn(map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}))
	if err != nil || p.LocalRank != -1 || p.LocalWorld != -1 || p.JobID != "" || p.Rendezvous != "a:2" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestFromEnvTorchrunErrors(t *testing.T) {
	const unset = "\x00"
	for _, c := range []struct{ name, value, variable, want string }{
		{"RANK", "8", "RANK", `RANK="8": must be below WORLD_SIZE=8`},
		{"RANK", "x", "RANK", `RANK="x": not a number`},
		{"RANK", "-1", "RANK", `RANK="-1": not a number of 0 or more`},
		{"RANK", unset, "RANK", "RANK is not set"},
		{"WORLD_SIZE", unset, "WORLD_SIZE", "WORLD_SIZE is not set"},
		{"WORLD_SIZE", "0", "WORLD_SIZE", `WORLD_SIZE="0": must be at least 1`},
		{"WORLD_SIZE", "99999999999", "WORLD_SIZE", "not a number"},
		{"MASTER_ADDR", unset, "MASTER_ADDR", "torchrun environment: MASTER_ADDR is not set"},
		{"MASTER_ADDR", "", "MASTER_ADDR", "is not set"},
		{"MASTER_PORT", unset, "MASTER_PORT", "is not set"},
		{"MASTER_PORT", "65535", "MASTER_PORT", "between 1 and 65534"},
		{"MASTER_PORT", "0", "MASTER_PORT", "between 1 and 65534"},
		{"LOCAL_RANK", "4", "LOCAL_RANK", "must be below LOCAL_WORLD_SIZE=4"},
		{"LOCAL_RANK", unset, "LOCAL_RANK", "is not set"},
		{"LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE", "between 1 and WORLD_SIZE=8"},
		{"LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE", "between 1 and WORLD_SIZE=8"},
	} {
		env := torchEnv()
		env[c.name] = c.value
		if c.value == unset {
			delete(env, c.name)
		}
		p, err := FromEnv(lookupIn(env))
		var ee *EnvError
		if p != nil || !errors.As(err, &ee) || ee.Variable != c.variable || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: %v, %v", c.name, c.value, p, err)
		}
	}
	// Without a run id: two of three are a half-set environment, one is not.
	env := map[string]string{"RANK": "0", "WORLD_SIZE": "2"}
	var ee *EnvError
	if _, err := FromEnv(lookupIn(env)); !errors.As(err, &ee) || ee.Variable != "MASTER_ADDR" {
		t.Error(err)
	}
	delete(env, "RANK")
	if p, err := FromEnv(lookupIn(env)); p != nil || err != nil {
		t.Error(p, err)
	}
}

func TestFromEnvForeignEngines(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    map[string]string
		engine string // "" for none
		world  int
	}{
		{"nothing", map[string]string{"HOME": "/"}, "", 0},
		{"mpirun -n 2", map[string]string{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI", 2},
		{"mpirun -n 1", map[string]string{"OMPI_COMM_WORLD_SIZE": "1"}, "", 0},
		{"hydra", map[string]string{"PMI_SIZE": "4", "PMI_RANK": "3"}, "PMI (MPICH, Intel MPI)", 4},
		{"srun", map[string]string{"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, "Slurm", 4},
		{"srun -n1 in a job of 4", map[string]string{
			"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"}, "", 0},
		{"batch script", map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "", 0},
	} {
		p, err := FromEnv(lookupIn(c.env))
		var un *UnsupportedEngineError
		switch {
		case p != nil:
			t.Errorf("%s: %+v", c.name, p)
		case c.engine == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.engine != "" && (!errors.As(err, &un) || un.Engine != c.engine || un.World != c.world ||
			!strings.Contains(err.Error(), fmt.Sprintf("started by %s as one of %d ranks", c.engine, c.world))):
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var ee *EnvError
	if _, err := FromEnv(lookupIn(map[string]string{"PMI_SIZE": "many"})); !errors.As(err, &ee) || ee.Value != "many" {
		t.Error(err)
	}
}

func TestJobToken(t *testing.T) {
	p, err := FromEnv(lookupIn(torchEnv()))
	if err != nil {
		t.Fatal(err)
	}
	none := lookupIn(nil)
	base, err := JobToken(p, none)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[bootstrap.Token]string{}
	for name, value := range map[string]string{
		"RANK": "2", "TORCHELASTIC_RUN_ID": "job8", "MASTER_ADDR": "node-1", "MASTER_PORT": "29501",
	} {
		env := maps.Clone(torchEnv())
		env[name] = value
		other, err := FromEnv(lookupIn(env))
		if err != nil {
			t.Fatal(err)
		}
		token, err := JobToken(other, none)
		if err != nil || (token == base) != (name == "RANK") {
			t.Errorf("%s: same token %v, %v", name, token == base, err)
		}
		if twin, twice := seen[token]; twice {
			t.Errorf("%s and %s give one token", name, twin)
		}
		seen[token] = name
	}
	given, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []*Placement{p, nil} {
		if token, err := JobToken(place, lookupIn(map[string]string{EnvToken: given.String()})); err != nil || token != given {
			t.Error(token == given, err)
		}
	}
	if _, err := JobToken(p, lookupIn(map[string]string{EnvToken: "abc"})); err == nil || !strings.Contains(err.Error(), EnvToken) {
		t.Error(err)
	}
	if _, err := JobToken(nil, none); err == nil {
		t.Error("a token out of nothing")
	}
}
