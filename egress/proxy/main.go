package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/egress"
)

// Main takes the configuration and the descriptors from standard input, a socket,
// says on it that it serves, and serves for as long as it is let live.
func Main() int {
	// The kernel moves the bytes. What is ours is short steps that wait for one another,
	// and handing each from thread to thread costs more than they do.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // whoever has its uid outside does not see into it
	err := run()
	fmt.Fprintln(os.Stderr, "yoi-egress:", err) // /dev/null, or whoever tries it by hand
	return 1
}

func run() error {
	cfg, files, err := egress.Receive(0)
	if err != nil {
		return err
	}
	serve, err := prepare(cfg, files)
	if err != nil {
		_ = egress.Answer(0, err)
		return err
	}
	if err := egress.Answer(0, nil); err != nil {
		return err
	}
	unix.Close(0)
	debug.FreeOSMemory()
	return serve()
}

func prepare(cfg egress.Config, files egress.Files) (func() error, error) {
	rules, err := cfg.Network.ParsedRules()
	if err != nil {
		return nil, err
	}
	counters, err := egress.MapCounters(int(files.Counters.Fd()))
	if err != nil {
		return nil, err
	}
	files.Counters.Close()
	g := &gate{rules: rules, resolver: resolver(cfg.Resolvers), own: ownAddress}
	s := newServer(cfg, g, counters, newLog(files.Log))
	if s.endpoints, err = s.newEndpoints(cfg, files.Values); err != nil {
		return nil, err
	}
	if len(files.Sockets) != len(cfg.Sockets) {
		return nil, errors.New("the sockets are not those of the configuration")
	}
	var loops []func() error
	for i, spec := range cfg.Sockets {
		loop, err := s.loop(spec, files.Sockets[i])
		if err != nil {
			return nil, err
		}
		files.Sockets[i].Close()
		loops = append(loops, loop)
	}
	return func() error {
		ended := make(chan error, len(loops))
		for _, l := range loops {
			go func() { ended <- l() }()
		}
		return <-ended
	}, nil
}

// loop is what serves one socket.
func (s *server) loop(spec egress.Socket, f *os.File) (func() error, error) {
	if spec.UDP {
		pc, err := net.FilePacketConn(f)
		if err != nil {
			return nil, err
		}
		return func() error { return s.answerNames(pc) }, nil
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	tl, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.New("a socket is no TCP listener")
	}
	serve := s.serveProxy
	switch spec.Kind {
	case egress.SocketProxy:
	case egress.SocketRule:
		if spec.Rule < 0 || spec.Rule >= len(s.gate.rules) {
			return nil, errors.New("a socket is for no rule")
		}
		serve = func(c *conn) { s.serveRule(c, s.gate.rules[spec.Rule]) }
	case egress.SocketSecret:
		if spec.Endpoint < 0 || spec.Endpoint >= len(s.endpoints) {
			return nil, errors.New("a socket is for no endpoint")
		}
		e := &s.endpoints[spec.Endpoint]
		serve = func(c *conn) {
			c.br = bufio.NewReaderSize(c, maxHead)
			s.serveHTTP(c, egress.ViaSecret, nil, e)
		}
	case egress.SocketDNS:
		serve = s.serveNames
	default:
		return nil, errors.New("a socket of an unknown kind")
	}
	return func() error { return s.accept(tl, serve) }, nil
}

// resolver is Go's own, which needs nothing but the host's resolv.conf and hosts, or
// the name servers that the operator names.
func resolver(servers []string) *net.Resolver {
	r := &net.Resolver{PreferGo: true}
	if len(servers) == 0 {
		return r
	}
	r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var last error
		for _, s := range servers {
			a, err := netip.ParseAddrPort(s)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			c, err := d.DialContext(ctx, network, a.String())
			if err == nil {
				return c, nil
			}
			last = err
		}
		return nil, last
	}
	return r
}
