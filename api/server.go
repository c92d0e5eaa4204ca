package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Options configure a Server. Zero values take the defaults.
type Options struct {
	Service runtime.Service
	Log     *slog.Logger
	// Failed is told the code of each request that was refused or failed. May be nil.
	Failed func(policy.Code)
	// AllowUIDs may call beside root and this process's own user.
	AllowUIDs []uint32
	// AllowGIDs are groups whose members may call.
	AllowGIDs      []uint32
	MaxConnections int // 256
	// AdmitSelf admits this process' own connections beyond that: whether it answers is
	// not for others to decide.
	AdmitSelf     bool
	MaxBody       int64         // 2 MiB
	HeaderTimeout time.Duration // 5 s
	BodyTimeout   time.Duration // 30 s
	WriteTimeout  time.Duration // 30 s for each write
	IdleTimeout   time.Duration // 2 min
}

// Server serves a runtime.Service.
type Server struct {
	opt    Options
	routes []route
	http   *http.Server

	// draining ends what waits for a Worker when the daemon goes down.
	draining context.Context
	drain    context.CancelFunc
	// stop cancels everything still running.
	stop context.CancelFunc
}

// NewServer prepares a server; Serve runs it.
func NewServer(opt Options) *Server {
	opt.Log = cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	opt.MaxConnections = cmp.Or(opt.MaxConnections, 256)
	opt.MaxBody = cmp.Or(opt.MaxBody, 2<<20)
	opt.HeaderTimeout = cmp.Or(opt.HeaderTimeout, 5*time.Second)
	opt.BodyTimeout = cmp.Or(opt.BodyTimeout, 30*time.Second)
	opt.WriteTimeout = cmp.Or(opt.WriteTimeout, 30*time.Second)
	opt.IdleTimeout = cmp.Or(opt.IdleTimeout, 2*time.Minute)
	s := &Server{opt: opt, routes: routes()}
	base, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.draining, s.drain = context.WithCancel(base)
	s.http = &http.Server{
		Handler:                      s,
		ReadHeaderTimeout:            opt.HeaderTimeout,
		IdleTimeout:                  opt.IdleTimeout,
		MaxHeaderBytes:               16 << 10,
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return base },
		ConnContext:                  withPeer,
		ErrorLog:                     slog.NewLogLogger(opt.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve accepts connections on l, a unix socket, until Shutdown. It may be
// called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	g := &guard{Listener: l, uids: s.opt.AllowUIDs, gids: s.opt.AllowGIDs, most: int64(s.opt.MaxConnections), self: s.opt.AdmitSelf, log: s.opt.Log}
	if err := s.http.Serve(g); !errors.Is(err, http.ErrServerClosed) {
		return policy.Errorf(policy.CodeUnavailable, "api.serve", "the socket cannot be served").Because(err)
	}
	return nil
}

// Shutdown stops accepting, ends what only waits, and lets the rest finish
// until ctx ends; then it cancels that too.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain()
	err := s.http.Shutdown(ctx)
	s.stop()
	if err != nil {
		_ = s.http.Close()
	}
	return err
}

// ServeHTTP answers one request: route, checks, handler, problem, log.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	c := &call{srv: s, svc: s.opt.Service, w: w, r: r, ctx: r.Context()}
	instance := "urn:yoi:request:" + policy.NewID("")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	err := s.serve(c)
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	if err == nil {
		s.log(c, slog.LevelDebug, "request", "took", time.Since(start))
		return
	}
	p := c.fail(err, instance)
	if s.opt.Failed != nil {
		s.opt.Failed(p.Code)
	}
	level := slog.LevelInfo
	if p.Status >= 500 {
		level = slog.LevelWarn
	}
	s.log(c, level, "request failed", "code", p.Code, "status", p.Status, "instance", instance,
		"took", time.Since(start), "error", err)
}

// serve runs the handler; a panic in it becomes an error without detail.
func (s *Server) serve(c *call) (err error) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				err = http.ErrAbortHandler
				return
			}
			s.opt.Log.Error("panic in a handler", "panic", v, "stack", string(debug.Stack()))
			err = policy.Errorf(policy.CodeInternal, "api.call", "an unexpected error stopped the operation")
		}
	}()
	// The escaped path, so that %2F is not a separator; no id needs an escape.
	if c.route, c.id, err = match(s.routes, c.r.Method, c.r.URL.EscapedPath()); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if c.route.waits {
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithCancel(c.ctx)
		defer cancel()
		defer context.AfterFunc(s.draining, cancel)()
	}
	err = c.route.handle(c)
	if err != nil && c.route.waits && s.draining.Err() != nil && c.r.Context().Err() == nil {
		return policy.Errorf(policy.CodeUnavailable, "api.call", "the daemon is shutting down").
			WithHint("Ask again when it is back: the Worker goes on.").Because(err)
	}
	return err
}

// check does what every operation needs done before its handler.
func (c *call) check() (err error) {
	if c.id != "" {
		if err := policy.CheckID("resource", c.id); err != nil {
			return err
		}
	}
	if c.r.Method != http.MethodPost {
		if err := c.noBody(); err != nil {
			return err
		}
	} else if c.key, err = c.route.checkKey(c.r.Header); err != nil {
		return err
	}
	c.query, err = parseQuery(c.r.URL.RawQuery, c.route.query)
	return err
}

func (s *Server) log(c *call, level slog.Level, msg string, args ...any) {
	if !s.opt.Log.Enabled(c.ctx, level) {
		return
	}
	if c.route != nil {
		args = append(args, "operation", c.route.operation, c.route.subject(), c.id)
	}
	if p, ok := PeerFrom(c.r.Context()); ok {
		args = append(args, "uid", p.UID, "pid", p.PID)
	}
	s.opt.Log.Log(c.ctx, level, msg, args...)
}
