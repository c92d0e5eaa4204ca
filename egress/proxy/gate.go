package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// How long the way to a server may take.
const (
	resolveTimeout = 15 * time.Second
	dialTimeout    = 15 * time.Second
)

// gate decides where the Worker may go, and goes there.
type gate struct {
	rules    []policy.NetworkRule
	resolver interface {
		LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	}
	dialer net.Dialer
	// own reports whether an address is the host's.
	own func(netip.Addr) bool
}

// target is a permitted destination.
type target struct {
	name string     // of a rule by name
	addr netip.Addr // of a rule by address
	port uint16
	rule int // the first that names it
	// within are the special ranges that the name may lead to.
	within []netip.Prefix
}

// host is the target's name or address as a URL has it.
func (t target) host() string {
	if t.name != "" {
		return t.name
	}
	return t.addr.String()
}

func (t target) String() string { return net.JoinHostPort(t.host(), strconv.Itoa(int(t.port))) }

// splitAuthority reads HOST:PORT as a proxy's client writes it. Nothing but a host
// and a port may be there: no user, no path.
func splitAuthority(s string, dflt uint16) (host string, port uint16, ok bool) {
	if s == "" || len(s) > 300 || strings.ContainsAny(s, "@/\\?#% \t\r\n\x00") {
		return s, 0, false
	}
	rest := ""
	if s[0] == '[' {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return s, 0, false
		}
		host, rest = s[1:end], s[end+1:]
		if !strings.Contains(host, ":") {
			return s, 0, false
		}
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		host, rest = s[:i], s[i:]
	} else {
		host = s
	}
	if rest == "" && dflt != 0 {
		return host, dflt, host != ""
	}
	if len(rest) < 2 || rest[0] != ':' || rest[1] < '1' || rest[1] > '9' {
		return host, 0, false
	}
	n, err := strconv.ParseUint(rest[1:], 10, 16)
	return host, uint16(n), err == nil && host != ""
}

// check finds the rules for a host and a port. A host is a name in ASCII or an
// address in its one usual form; what some resolver would take for an address, in
// other forms, is neither.
func (g *gate) check(host string, port uint16) (target, error) {
	t := target{port: port, rule: -1}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" || a.Is4In6() {
			return t, refusal(egress.ReasonName)
		}
		t.addr = a
		for i, r := range g.rules {
			if r.Port == port && r.Addr == a {
				t.rule = i
				return t, nil
			}
		}
		return t, refusal(egress.ReasonRule)
	}
	name, ok := policy.CanonicalName(host)
	if !ok {
		return t, refusal(egress.ReasonName)
	}
	t.name = name
	for i, r := range g.rules {
		if r.Port == port && r.MatchesName(name) {
			if t.rule < 0 {
				t.rule = i
			}
			t.within = append(t.within, r.Within...)
		}
	}
	if t.rule < 0 {
		return t, refusal(egress.ReasonRule)
	}
	return t, nil
}

// endpoint is the target of a secret's own host. No rule need name it; one that does
// may say that it leads to an address that is not public.
func (g *gate) endpoint(e egress.Endpoint) target {
	t, err := g.check(e.Host, e.Port)
	if err != nil {
		return target{name: e.Host, port: e.Port, rule: egress.NoRule}
	}
	return t
}

// dial connects to a target. A name is resolved here, once, and the addresses that
// were judged are the ones that are dialled.
func (g *gate) dial(ctx context.Context, t target) (*net.TCPConn, error) {
	addrs := []netip.Addr{t.addr}
	if t.name != "" {
		var err error
		if addrs, err = g.resolve(ctx, t); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var last error
	for _, a := range addrs {
		c, err := g.dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, t.port).String())
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		last = err
	}
	return nil, failure{egress.ReasonDial, last}
}

// failure is an error that is nobody's no.
type failure struct {
	reason egress.Reason
	err    error
}

func (f failure) Error() string { return string(f.reason) }
func (f failure) Unwrap() error { return f.err }

// resolve returns the addresses of a name that it may lead to.
func (g *gate) resolve(ctx context.Context, t target) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	name := t.name
	if strings.Contains(name, ".") {
		name += "." // or the host's search domains would be tried
	}
	all, err := g.resolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil, failure{egress.ReasonResolve, err}
	}
	var ok []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); g.permits(t, a) {
			ok = append(ok, a)
		}
	}
	if len(ok) == 0 {
		return nil, refusal(egress.ReasonAddress)
	}
	return ok, nil
}

func (g *gate) permits(t target, a netip.Addr) bool {
	for _, p := range t.within {
		if p.Contains(a) {
			return true
		}
	}
	return policy.SpecialAddress(a) == "" && !g.own(a)
}

// ownAddress asks the kernel: the way to an address of the host's own begins there.
// No packet is sent.
func ownAddress(a netip.Addr) bool {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		return false // there is no way there, which dialling will tell
	}
	defer c.Close()
	local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	return local == a
}

// reasonOf is what the log says of an error.
func reasonOf(err error) egress.Reason {
	var no refusal
	var f failure
	switch {
	case errors.As(err, &no):
		return egress.Reason(no)
	case errors.As(err, &f):
		return f.reason
	}
	return egress.ReasonDial
}
