package backend

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// settings are a configuration and what follows from it. A request has the same from
// its beginning to its end; Reload puts others into force for those that come.
type settings struct {
	cfg      Config
	runtimes map[string]runtime.Service
	names    *repositoryNames
	private  []string
	hosts    map[string]bool
	cross    *http.CrossOriginProtection
	session  time.Duration
	cert     *tls.Certificate // nil without TLS

	requests, logins *limiter
	streams          chan struct{} // a place for each live stream

	// over ends with them: live streams do, and their clients ask again.
	over context.Context
	end  context.CancelFunc
}

// newSettings checks what a file alone does not say. What has not changed is taken over
// from the settings before, if there are any.
func newSettings(cfg Config, connect func(socket string) runtime.Service, before *settings) (*settings, error) {
	if err := cfg.CheckStore(); err != nil {
		return nil, err
	}
	s := &settings{
		cfg: cfg, runtimes: make(map[string]runtime.Service, len(cfg.Runtimes)), names: new(repositoryNames), private: cfg.private(),
		hosts: make(map[string]bool), cross: http.NewCrossOriginProtection(), streams: make(chan struct{}, cfg.Limits.Streams),
		requests: newLimiter(cfg.Limits.RequestsPerSecond, cfg.Limits.Burst),
		logins:   newLimiter(cfg.Limits.LoginsPerMinute/60, int(max(cfg.Limits.LoginsPerMinute, 1))),
	}
	var err error
	if s.session, err = time.ParseDuration(cfg.Sessions.Lifetime); err != nil {
		return nil, configError("sessions.lifetime is no duration").Because(err)
	}
	if s.cert, err = cfg.Listen.certificate(); err != nil {
		return nil, err
	}
	if err := s.answerTo(cfg.Listen); err != nil {
		return nil, err
	}
	for id, r := range cfg.Runtimes {
		if before != nil && before.cfg.Runtimes[id] == r {
			s.runtimes[id] = before.runtimes[id]
		} else {
			s.runtimes[id] = connect(r.Socket)
		}
	}
	if before != nil {
		s.takeOver(before)
	}
	s.over, s.end = context.WithCancel(context.Background())
	return s, nil
}

// takeOver keeps what must not begin anew: who has used up what is allowed goes on
// waiting, and what was not to be told is not told by what is still under way.
func (s *settings) takeOver(before *settings) {
	l, old := s.cfg.Limits, before.cfg.Limits
	if l.RequestsPerSecond == old.RequestsPerSecond && l.Burst == old.Burst {
		s.requests = before.requests
	}
	if l.LoginsPerMinute == old.LoginsPerMinute {
		s.logins = before.logins
	}
	s.private = slices.Concat(s.private, before.private)
	slices.SortFunc(s.private, longestFirst)
	s.private = slices.Compact(s.private)
}

// answerTo learns under which names browsers may come, and from which sites.
func (s *settings) answerTo(l ListenConfig) error {
	for _, o := range l.Origins {
		u, err := url.Parse(o)
		if err == nil {
			err = s.cross.AddTrustedOrigin(o)
		}
		if err != nil {
			return configError("the origin %q is not valid", policy.Printable(o))
		}
		s.hosts[strings.ToLower(u.Hostname())] = true
	}
	if host, _, err := net.SplitHostPort(l.Address); err == nil {
		s.hosts[host] = true
		if loopback(host) {
			for _, h := range []string{"localhost", "127.0.0.1", "::1"} {
				s.hosts[h] = true
			}
		}
	}
	return nil
}

// certificate reads the key pair, nil if there is none.
func (l ListenConfig) certificate() (*tls.Certificate, error) {
	if l.TLSCert == "" {
		return nil, nil
	}
	c, err := tls.LoadX509KeyPair(l.TLSCert, l.TLSKey)
	if err != nil {
		return nil, configError("listen.tls_cert and listen.tls_key are no key pair that can be read").Because(err)
	}
	return &c, nil
}

// dial connects to a Runtime.
func dial(socket string) runtime.Service { return api.NewClient(socket) }

// restarts are the settings that a running Backend cannot change: it has its socket and
// its store. They stay as they are, and are named.
func (c *Config) restarts(now Config) (names []string) {
	keep := func(name string, to *string, from string) {
		if *to != from {
			*to = from
			names = append(names, name)
		}
	}
	keep("store", &c.Store, now.Store)
	keep("listen.address", &c.Listen.Address, now.Listen.Address)
	keep("listen.socket", &c.Listen.Socket, now.Listen.Socket)
	if (c.Listen.TLSCert == "") != (now.Listen.TLSCert == "") {
		c.Listen.TLSCert, c.Listen.TLSKey = now.Listen.TLSCert, now.Listen.TLSKey
		names = append(names, "listen.tls_cert")
	}
	return names
}

// Reload reads a configuration file and puts it into force: workspaces with their
// repositories and what they allow, Runtimes, limits, origins, the TLS key pair. One
// with a mistake changes nothing. What takes a restart is named in the log and in the
// status line. Live streams end, so that nobody goes on under what was allowed before.
func (b *Backend) Reload(path string) error {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	before := b.settings()
	cfg, err := LoadConfig(path)
	var waits []string
	var s *settings
	if err == nil {
		waits = cfg.restarts(before.cfg)
		s, err = newSettings(cfg, b.connect, before)
	}
	if err != nil {
		d := policy.AsDiagnostic(err)
		b.amiss.Store(new("the configuration is not in force: " + d.Message))
		b.log.Error("the configuration is as it was: the new one is refused", "error", err)
		return err
	}
	b.inForce.Store(s)
	before.end()
	for id, r := range before.runtimes {
		if c, ok := r.(*api.Client); ok && s.runtimes[id] != r {
			_ = c.Close() // its idle connections; it cannot fail
		}
	}
	b.amiss.Store(nil)
	if len(waits) > 0 {
		b.amiss.Store(new("a restart is needed for " + strings.Join(waits, ", ")))
		b.log.Warn("the configuration was read again, but for what takes a restart", "settings", strings.Join(waits, " "))
		return nil
	}
	b.log.Info("the configuration was read again")
	return nil
}
