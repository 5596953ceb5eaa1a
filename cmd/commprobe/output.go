package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
)

// checkJSONFile refuses a --json file that cannot be written, before any work.
func checkJSONFile(c *cli.Context, command string) error {
	file := c.String("json")
	if file == "" || file == "-" {
		return nil
	}
	switch err := report.CheckOutput(file, report.Options{Force: c.Bool("force")}); {
	case errors.Is(err, report.ErrExists):
		return usage("%s: --json: %w (--force)", command, err)
	case err != nil:
		return usage("%s: --json: %w", command, err)
	}
	return nil
}

// writeFound writes a command's value as JSON where --json asks for it, and as text unless the JSON took stdout.
func writeFound(c *cli.Context, command string, value any, text func(io.Writer) error) error {
	asJSON := func(w io.Writer) error { return writeIndented(w, value, " ") }
	var err error
	switch file := c.String("json"); file {
	case "":
		err = text(c.App.Writer)
	case "-":
		err = asJSON(c.App.Writer)
	default:
		if err = report.WriteFile(file, report.Options{Force: c.Bool("force")}, asJSON); err == nil {
			err = text(c.App.Writer)
		}
	}
	if err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("%s: %w", command, err)}
	}
	return nil
}
