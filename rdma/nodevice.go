package rdma

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/commprobe/commprobe/ibverbs"
)

// seen is what was found where RDMA devices show themselves.
type seen struct {
	library   string   // path of libibverbs, "" when it was not found
	libError  string   // why not
	asked     string   // error of the list of devices, "" when it was empty
	class     []string // of /sys/class/infiniband
	noClass   bool     // that folder is not there
	files     []string // of /dev/infiniband
	noFiles   bool
	pci       []string // adapters that drivers of RDMA devices know
	modules   []string // of those that RDMA needs, which are loaded
	contained bool     // this looks like a container
}

// wanted modules, as /sys/module names them.
var wanted = []string{"ib_core", "ib_uverbs", "mlx5_ib", "mlx4_ib", "bnxt_re", "irdma", "efa", "rdma_rxe", "siw"}

// look gathers below root, which is "" but for tests.
func look(root string, err error) seen {
	var s seen
	if lib, lerr := ibverbs.Load(""); lerr == nil {
		s.library = lib.Path
		var call *ibverbs.Error
		switch {
		case errors.As(err, &call): // without its hint: what is needed is said below
			s.asked = call.Func + ": " + call.Errno.Error()
		case err != nil:
			s.asked = err.Error()
		}
	} else {
		s.libError = lerr.Error()
	}
	list := func(dir string) (names []string, missing bool) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names, err != nil
	}
	s.class, s.noClass = list("/sys/class/infiniband")
	s.files, s.noFiles = list("/dev/infiniband")
	for _, m := range wanted {
		if _, err := os.Stat(filepath.Join(root, "/sys/module", m)); err == nil {
			s.modules = append(s.modules, m)
		}
	}
	for _, f := range []string{"/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"} {
		if _, err := os.Stat(filepath.Join(root, f)); err == nil {
			s.contained = true
		}
	}
	s.pci = adapters(filepath.Join(root, "/sys/bus/pci/devices"))
	return s
}

// rdmaVendors make adapters that can do RDMA; some of their cards cannot, so this is only ever a hint.
var rdmaVendors = map[string]string{"0x15b3": "NVIDIA/Mellanox", "0x14e4": "Broadcom", "0x1d0f": "Amazon"}

// adapters lists network cards of those vendors by PCI address.
func adapters(dir string) (out []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		vendor, err1 := os.ReadFile(filepath.Join(dir, e.Name(), "vendor"))
		class, err2 := os.ReadFile(filepath.Join(dir, e.Name(), "class"))
		name, known := rdmaVendors[strings.TrimSpace(string(vendor))]
		if err1 == nil && err2 == nil && known && strings.HasPrefix(string(class), "0x02") {
			out = append(out, e.Name()+" ("+name+")")
		}
	}
	return out
}

// noDevice is the error of a machine on which RDMA cannot be used.
func noDevice(err error) error { return problem(Unusable, err, "%s", look("", err)) }

// String is one message: what was looked at, what that means, and what would be needed.
func (s seen) String() string {
	var b strings.Builder
	b.WriteString("no RDMA device here: ")
	if s.library == "" {
		b.WriteString(s.libError)
	} else {
		fmt.Fprintf(&b, "libibverbs is there (%s)", s.library)
		if s.asked != "" {
			b.WriteString(" but says: " + s.asked)
		}
	}
	tell := func(dir string, names []string, missing bool) {
		switch {
		case missing:
			fmt.Fprintf(&b, "; %s does not exist", dir)
		case len(names) == 0:
			fmt.Fprintf(&b, "; %s is empty", dir)
		default:
			fmt.Fprintf(&b, "; %s has %s", dir, strings.Join(names, ", "))
		}
	}
	tell("/sys/class/infiniband", s.class, s.noClass)
	tell("/dev/infiniband", s.files, s.noFiles)
	if len(s.modules) > 0 {
		b.WriteString("; modules loaded: " + strings.Join(s.modules, ", "))
	} else {
		b.WriteString("; no RDMA module is loaded")
	}
	if len(s.pci) > 0 {
		b.WriteString("; network cards that may do RDMA: " + strings.Join(s.pci, ", "))
	}
	b.WriteString(". Needed: " + strings.Join(s.needs(), "; "))
	return b.String()
}

// needs says what to do, most likely first.
func (s seen) needs() (out []string) {
	if s.library == "" {
		out = append(out, "the library (apt-get install libibverbs1 ibverbs-providers)")
	}
	switch {
	case len(s.class) > 0 && s.noFiles && s.contained:
		return append(out, "the host has devices, this container may not use them: --device=/dev/infiniband --cap-add=IPC_LOCK --network=host for docker and podman, or the cluster's RDMA device plugin in Kubernetes")
	case len(s.class) > 0 && s.noFiles:
		return append(out, "the device files (modprobe ib_uverbs)")
	case len(s.class) > 0:
		return append(out, "the provider for "+strings.Join(s.class, ", ")+" (apt-get install ibverbs-providers, of the same version as libibverbs), and read and write permission on /dev/infiniband/uverbs*")
	}
	driver := "a network card that can do RDMA and its kernel module (modprobe mlx5_ib, bnxt_re, irdma or efa)"
	if len(s.pci) > 0 {
		driver = "the kernel module of the card (modprobe mlx5_ib, bnxt_re, irdma or efa)"
	}
	out = append(out, driver, "modprobe ib_uverbs")
	if s.contained {
		out = append(out, "in a container also --device=/dev/infiniband --cap-add=IPC_LOCK --network=host")
	}
	return append(out, "without such a card soft-RoCE does for trying: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0")
}
