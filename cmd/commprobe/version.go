package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the versions and paths of the program, Go and every library that it loads",
		Flags: globalFlags(),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usage("version takes no arguments")
			}
			engine, err := engineName(c)
			if err != nil {
				return err
			}
			return printVersion(c.App.Writer, engine, text(c, "cudart-lib"), text(c, "nccl-lib"))
		},
	}
}

// printVersion prints one line a component; what is not there is said in words and is no error, except when native was demanded.
func printVersion(w io.Writer, engine, cudart, ncclLib string) error {
	var b strings.Builder
	line := func(name, version, path string) { fmt.Fprintf(&b, "%-14s %-16s %s\n", name, version, path) }
	line("commprobe", programVersion(), "")
	line("go", strings.TrimPrefix(runtime.Version(), "go"), runtime.GOOS+"/"+runtime.GOARCH)
	var failed error
	if engine != "host" {
		if failed = bench.UseEngine("native", cudart, ncclLib, 0); failed == nil || len(cuda.Libraries()) > 0 {
			for _, l := range cuda.Libraries() {
				line(l.Name, l.Version, l.Path)
			}
		}
		if failed == nil {
			l := nccl.Library()
			line(l.Name, l.Version, l.Path)
		} else {
			line("native engine", "not available", failed.Error())
		}
		if v := cuda.KernelDriver(""); v != "" {
			line("kernel driver", v, "/proc/driver/nvidia/version")
		}
	}
	cuda.UseHost(1)
	for _, l := range cuda.Libraries() {
		line(l.Name, l.Version, l.Path)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	if failed != nil && engine == "native" {
		return &exitError{noDeviceStatus(failed), failed}
	}
	return nil
}

// noDeviceStatus is the exit status for an engine that cannot be used.
func noDeviceStatus(err error) int {
	var none *cuda.NoDeviceError
	if _, lib := csrc.IsLibrary(err); lib || errors.As(err, &none) {
		return bench.ExitNoDevice
	}
	return bench.ExitInternal
}
