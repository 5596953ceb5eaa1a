package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
)

// How the parent tells a worker process who it is.
const (
	envStore   = "COMMPROBE_STORE"
	envRanks   = "COMMPROBE_RANKS"   // "0,1"
	envDevices = "COMMPROBE_DEVICES" // "0,1", a device for each rank
	envWorld   = "COMMPROBE_WORLD"
	envTimeout = "COMMPROBE_TIMEOUT" // of the join, seconds
)

const workerName = "rank-worker"

func workerCommand() *cli.Command {
	return &cli.Command{
		Name:   workerName,
		Hidden: true,
		Usage:  "be ranks of a run; started by other commands",
		Action: func(*cli.Context) error { return worker() },
	}
}

// watchParent ends this process and what it started some time after its parent is gone: a thread that hangs must not keep it alive.
func watchParent(grace time.Duration) (gone <-chan struct{}, err error) {
	if gone, err = launch.WatchParent(os.Getenv); err != nil {
		return nil, &exitError{bench.ExitInternal, err}
	}
	if gone != nil {
		go func() {
			<-gone
			time.Sleep(grace)
			launch.KillOwnGroup()
		}()
	}
	return gone, nil
}

func worker() error {
	gone, err := watchParent(3 * time.Second) // the orderly way out is RunWorker's
	if err != nil {
		return err
	}
	cfg, err := workerConfig(os.Getenv)
	if err != nil {
		return usage("%s is started by other commands only: %w", workerName, err)
	}
	cfg.ParentGone = gone
	// The parent ends its workers itself; a SIGTERM of its own making ends the wait at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return workerStatus(bench.RunWorker(ctx, cfg))
}

// workerStatus keeps quiet about an end that the coordinator knows of and prints itself.
func workerStatus(err error) error {
	if err == nil {
		return nil
	}
	var aborted *bootstrap.AbortedError
	var failure *bench.Failure
	if errors.As(err, &aborted) || errors.As(err, &failure) || errors.Is(err, context.Canceled) {
		return &exitError{bench.ExitDied, nil}
	}
	return &exitError{bench.ExitInternal, err}
}

func workerConfig(getenv func(string) string) (bench.WorkerConfig, error) {
	cfg := bench.WorkerConfig{Addr: getenv(envStore), Program: programVersion(), JoinTimeout: time.Minute}
	if cfg.Addr == "" {
		return cfg, fmt.Errorf("%s is not set", envStore)
	}
	var err error
	if cfg.Token, err = bootstrap.ParseToken(getenv(launch.EnvToken)); err != nil {
		return cfg, fmt.Errorf("%s: %w", launch.EnvToken, err)
	}
	if cfg.Ranks, err = numbers(getenv(envRanks)); err != nil {
		return cfg, fmt.Errorf("%s: %w", envRanks, err)
	}
	if cfg.Devices, err = numbers(getenv(envDevices)); err != nil || len(cfg.Devices) != len(cfg.Ranks) {
		return cfg, fmt.Errorf("%s=%q does not give one device a rank", envDevices, getenv(envDevices))
	}
	if cfg.World, err = strconv.Atoi(getenv(envWorld)); err != nil {
		return cfg, fmt.Errorf("%s: %w", envWorld, err)
	}
	if s, err := strconv.ParseFloat(getenv(envTimeout), 64); err == nil && s > 0 {
		cfg.JoinTimeout = time.Duration(s * float64(time.Second))
	}
	return cfg, nil
}

func numbers(s string) ([]int, error) {
	var out []int
	for _, f := range strings.Split(s, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not a list of numbers", s)
		}
		out = append(out, n)
	}
	return out, nil
}

func joinNumbers(list []int) string {
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}
