package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrExists is what WriteFile, WritePlot and CheckOutput wrap when the file is there and Options.Force is not set.
var ErrExists = errors.New("file exists already")

// CheckOutput says, before anything is measured, whether WriteFile could make path: that it does not exist (or opts.Force), and that its
// folder does. It leaves nothing behind. Errors: ErrExists, a missing folder, a path that is a folder.
func CheckOutput(path string, opts Options) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("write %s: is a folder, need a file name", path)
	case err == nil && info.Mode().IsRegular() && !opts.Force:
		return existsError(path)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write: %w", err)
	}
	if path == "" {
		return errors.New("write: empty file name")
	}
	if folder, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: folder: %w", path, err)
	} else if !folder.IsDir() {
		return fmt.Errorf("write %s: %s is not a folder", path, filepath.Dir(path))
	}
	return nil
}

func existsError(path string) error {
	return fmt.Errorf("write %s: %w; choose another name, or force it to be replaced", path, ErrExists)
}

// WriteFile makes path out of what write gives, whole or not at all: it writes a new file beside it, syncs and renames. An existing file is
// replaced only with opts.Force; without it a file that appears in the meantime is kept too. A device or pipe such as /dev/null or
// /dev/stderr is written to directly. "-" is the caller's business. Errors: those of CheckOutput, of write and of the file system.
func WriteFile(path string, opts Options, write func(io.Writer) error) (err error) {
	if err := CheckOutput(path, opts); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return writeDevice(path, write)
	}
	temp, err := createBeside(path)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			temp.Close()
			os.Remove(temp.Name())
		}
	}()
	if err := writeBuffered(temp, write); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := temp.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := temp.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return publish(temp.Name(), path, opts.Force)
}

func writeBuffered(w io.Writer, write func(io.Writer) error) error {
	buffered := bufio.NewWriter(w)
	if err := write(buffered); err != nil {
		return err
	}
	return buffered.Flush()
}

func writeDevice(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := errors.Join(writeBuffered(f, write), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// createBeside opens a new file in the folder of path, with the permissions that the umask leaves (os.CreateTemp would give 0600).
func createBeside(path string) (*os.File, error) {
	for try := 0; ; try++ {
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d-%d.tmp", filepath.Base(path), os.Getpid(), try))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil || !errors.Is(err, fs.ErrExist) || try == 1000 {
			return f, err
		}
	}
}

// publish gives the finished file its name. A hard link fails where the name is taken, which a rename does not; file systems without
// links get a check and a rename.
func publish(temp, path string, force bool) error {
	if !force {
		switch err := os.Link(temp, path); {
		case err == nil:
			return os.Remove(temp)
		case errors.Is(err, fs.ErrExist):
			return existsError(path)
		}
		if _, err := os.Lstat(path); err == nil {
			return existsError(path)
		}
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// plotFormats are the file endings that WritePlot knows.
var plotFormats = []string{"png", "svg", "pdf"}

// PlotFormat returns the picture format that the ending of path asks for: "png", "svg" or "pdf". Any other ending is an error.
func PlotFormat(path string) (string, error) {
	format := strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
	if !slices.Contains(plotFormats, format) {
		return "", fmt.Errorf("plot %s: cannot tell the picture format; end the name in .%s", path, strings.Join(plotFormats, ", ."))
	}
	return format, nil
}
