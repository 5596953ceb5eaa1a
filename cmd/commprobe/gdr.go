package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/gdr"
	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/rdma"
)

const gdrHelp = `Answers for each GPU and NIC of this node whether the NIC reaches the GPU's memory by itself (GPUDirect RDMA), by trying it: memory is allocated on the
GPU, exported as DMA-BUF (and given as peer memory), registered with the NIC, and data is written by the NIC from GPU memory into GPU memory and compared.

   commprobe gdr                     the matrix, each reason once, and what to do
   sudo commprobe gdr                also ACS of the bridges on the way, which only root may read
   commprobe gdr --json - | jq -r '.verdicts[] | select(.answer == "does not work") | .gpu + " " + .nic + ": " + .why'

There are three answers: works; does not work, because …; could not be tested, because …. Beside them stands whether NCCL would use it by its distance rule
(NCCL_NET_GDR_LEVEL). Without a NIC it tells for each GPU whether its memory can be exported. Run it as the job will run: same user, container and limits.

The exit status is 8 when a pair does not work, 0 otherwise.`

func gdrCommand() *cli.Command {
	flags := append([]cli.Flag{
		&cli.Float64Flag{Name: "timeout", Aliases: []string{"T"}, Value: 5, Usage: "seconds that each transfer may take"},
		&cli.StringFlag{Name: "json", Usage: "write everything to `FILE` (- is stdout, and nothing else goes there)"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}, globalFlags()...)
	return &cli.Command{
		Name: "gdr", Usage: "can each NIC reach each GPU's memory? tried, with the reason where not", Description: gdrHelp, HideHelpCommand: true,
		Flags: flags, Action: runGDR,
	}
}

func runGDR(c *cli.Context) error {
	if c.Args().Present() {
		return usage("gdr takes no arguments but flags, not %q", c.Args().First())
	}
	wait := c.Float64("timeout")
	if !(wait >= 0.1 && wait <= 3600) {
		return usage("gdr: -T %g: use seconds, 0.1 to 3600", wait)
	}
	if err := checkJSONFile(c, "gdr"); err != nil {
		return err
	}
	say, status := talk(c)
	// Before the engine is chosen: the list asks GPUs as well, through the native one.
	s := gdrSources()
	host, err := gpuEngine(c, 1, say)
	if err != nil {
		return err
	}
	f, err := gdr.Look(s)
	if err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("gdr: %w", err)}
	}
	if host {
		f.Notes = append(f.Notes, "no GPU is used: the host engine's devices are memory of this process")
	}
	gdr.Try(&f, gdr.Live{Wait: time.Duration(wait * float64(time.Second))}, func(what string) { status("trying: " + what) })
	status("")
	name, _ := os.Hostname() // for the report alone
	r := &gdr.Report{Schema: gdr.Schema, Program: programVersion(), Host: name, Time: time.Now(), Facts: f}
	gdr.Judge(r)
	if err := writeFound(c, "gdr", r, r.WriteText); err != nil {
		return err
	}
	if r.Count(gdr.No) > 0 {
		return &exitError{status: bench.ExitFindings}
	}
	return nil
}

// gdrSources asks NVML, /sys and libibverbs.
func gdrSources() gdr.Sources {
	s := gdr.Sources{Root: "/", Getenv: os.Getenv}
	s.NICs, s.NICsErr = rdma.Devices("")
	ctx, cancel := context.WithTimeout(context.Background(), linksPatience)
	defer cancel()
	if n, err := nvml.Read(ctx, nvml.Options{}); err == nil {
		s.NVML = n
	}
	if g, err := topo.ReadSys("/", topoDevices(s.NVML)); err == nil {
		s.Graph = g
	}
	return s
}
