package live

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

const gpuFile = "nvidia_smi.txt"

// gpuFields are the questions to nvidia-smi; the bus id and how busy the GPU is come first.
var gpuFields = []string{"pci.bus_id", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu", "ecc.errors.uncorrected.volatile.total"}

// nvidiaSMI asks the driver about the GPUs: a kernel that spins shows as 100 % busy.
func (c *collector) nvidiaSMI(ctx context.Context) {
	out, err := c.command(ctx, "nvidia-smi", "--query-gpu="+strings.Join(gpuFields, ","), "--format=csv,noheader")
	if err != nil {
		c.fail("GPU state", -1, err)
		return
	}
	apps, err := c.command(ctx, "nvidia-smi", "--query-compute-apps=gpu_bus_id,pid", "--format=csv,noheader")
	if err != nil {
		apps = nil
	}
	c.save(gpuFile, append(append(out[:len(out):len(out)], '\n'), apps...))
	facts := c.gpuFacts(string(out), string(apps))
	c.mu.Lock()
	c.facts = append(c.facts, facts...)
	c.mu.Unlock()
}

// gpuFacts makes a fact a GPU, with the rank whose process uses it.
func (c *collector) gpuFacts(gpus, apps string) []evidence.Fact {
	users := make(map[string]*process)
	for line := range strings.Lines(apps) {
		bus, pid, _ := strings.Cut(strings.TrimSpace(line), ", ")
		if p := c.byPID(number(pid)); p != nil {
			users[bus] = p
		}
	}
	var out []evidence.Fact
	for i, line := range strings.Split(strings.TrimSpace(gpus), "\n") {
		values := strings.Split(strings.TrimSpace(line), ", ")
		if len(values) != len(gpuFields) {
			continue
		}
		f := newFact(evidence.GPUState, evidence.Where{File: filepath.Join(c.dir, gpuFile), Line: i + 1})
		f.Text = strings.TrimSpace(line)
		if n, err := strconv.Atoi(firstWord(values[1])); err == nil {
			f.Code = n
		}
		var parts []string
		for j, v := range values {
			parts = append(parts, gpuFields[j]+" "+v)
		}
		f.Detail = strings.Join(parts, ", ")
		if p := users[values[0]]; p != nil {
			f.Rank, f.PID = p.rank, p.pid
		}
		out = append(out, f)
	}
	return out
}
