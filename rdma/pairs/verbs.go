package pairs

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/rdma"
)

// Verbs measures with the link test of package rdma.
type Verbs struct {
	Program string // version of this program
}

// Devices lists the devices of this host.
func (v Verbs) Devices() (*rdma.List, error) { return rdma.Devices("") }

// Serve is `rdma serve --once`.
func (v Verbs) Serve(ctx context.Context, token bootstrap.Token, j ServeJob, listening func(addr string)) error {
	s := rdma.Server{
		Addr: net.JoinHostPort(bindHere(ctx, j.Bind), strconv.Itoa(j.TCPPort)), Token: token, GID: -1, Once: true, Deadline: j.Deadline, Listening: listening,
		Want: rdma.Want{Device: j.Device, Port: j.Port, Program: v.Program, Memory: j.Memory, CPU: -1},
	}
	return s.Run(ctx)
}

// Test is the other side of it.
func (v Verbs) Test(ctx context.Context, token bootstrap.Token, j TestJob) (*rdma.Report, error) {
	c := rdma.Client{Addr: j.Addr, Token: token, Want: rdma.Want{Device: j.Device, Port: j.Port, Program: v.Program}, Options: j.Options}
	return c.Run(ctx)
}

// bindHere is the address to listen at so that the others reach it by name.
func bindHere(ctx context.Context, name string) string {
	var resolved, local []netip.Addr
	if list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", cmp.Or(name, "localhost")); err == nil {
		resolved = list
	}
	if list, err := net.InterfaceAddrs(); err == nil {
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				local = append(local, p.Addr())
			}
		}
	}
	return bindTo(name, resolved, local)
}

// bindTo chooses it: what the user wrote if that is a loopback address on purpose, else the local one among those that the name has here. A host's own name
// often stands for 127.0.1.1 in its /etc/hosts, or for an address that is translated on the way: then all addresses, as the token keeps strangers out.
func bindTo(name string, resolved, local []netip.Addr) string {
	if a, err := netip.ParseAddr(name); name == "localhost" || err == nil && a.IsLoopback() {
		return name
	}
	for _, a := range resolved {
		a = a.Unmap().WithZone("")
		for _, l := range local {
			if a == l.Unmap().WithZone("") && !a.IsLoopback() {
				return a.String()
			}
		}
	}
	return ""
}
