package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Backend answers a configuration's workspaces.
type Backend struct {
	store   *store.Store
	log     *slog.Logger
	routes  []route
	connect func(socket string) runtime.Service
	tls     bool          // what it serves with does not change
	hashing chan struct{} // who computes a password hash: 64 MiB each

	inForce   atomic.Pointer[settings]
	amiss     atomic.Pointer[string] // what is not in force, and why
	reloading sync.Mutex

	actors    actorBook
	creations creationHub
	disks     diskCache
	usage     usageBook

	// running ends what only waits, and what goes on behind requests.
	running context.Context
	stop    context.CancelFunc
	behind  sync.WaitGroup
	http    *http.Server
}

// New opens the store and prepares the server; Serve runs it.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Backend, error) {
	return newBackend(ctx, cfg, log, dial)
}

func newBackend(ctx context.Context, cfg Config, log *slog.Logger, connect func(string) runtime.Service) (*Backend, error) {
	set, err := newSettings(cfg, connect, nil)
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, cfg.Store)
	if err != nil {
		return nil, refuse(CodeStoreFailed, "the store cannot be opened").Because(err)
	}
	b := &Backend{store: s, log: log, routes: routes(), connect: connect, tls: set.cert != nil, hashing: make(chan struct{}, 2)}
	b.inForce.Store(set)
	b.running, b.stop = context.WithCancel(context.Background())
	b.http = &http.Server{
		Handler:           b,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return b.settings().cert, nil
		}},
	}
	if err := b.resume(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return b, nil
}

func (b *Backend) settings() *settings { return b.inForce.Load() }

// Listen opens the configured address or socket. A socket that nobody listens on
// any more is replaced.
func (b *Backend) Listen() (net.Listener, error) {
	l := b.settings().cfg.Listen
	if l.Socket == "" {
		return net.Listen("tcp", l.Address)
	}
	if c, err := net.DialTimeout("unix", l.Socket, time.Second); err == nil {
		c.Close()
		return nil, configError("another process listens on the socket")
	} else if errors.Is(err, os.ErrPermission) {
		return nil, err
	}
	if fi, err := os.Lstat(l.Socket); err == nil && fi.Mode().Type() == os.ModeSocket {
		if err := os.Remove(l.Socket); err != nil {
			return nil, err
		}
	}
	ln, err := net.Listen("unix", l.Socket)
	if err != nil {
		return nil, err
	}
	return ln, os.Chmod(l.Socket, 0o660)
}

// Serve answers on l until Shutdown.
func (b *Backend) Serve(l net.Listener) error {
	var err error
	if b.tls {
		err = b.http.ServeTLS(l, "", "")
	} else {
		err = b.http.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown ends live streams, lets other requests finish until ctx ends, and
// closes the store. Creations that are under way go on at the next start.
func (b *Backend) Shutdown(ctx context.Context) error {
	b.stop()
	b.settings().end()
	err := b.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, b.http.Close())
	}
	b.behind.Wait()
	for _, r := range b.settings().runtimes {
		if c, ok := r.(*api.Client); ok {
			err = errors.Join(err, c.Close())
		}
	}
	return errors.Join(err, b.store.Close())
}

// call is one request on its way.
type call struct {
	b     *Backend
	s     *settings
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context
	route *route
	// ws is the workspace of the path, which who may enter; id is the path's further id.
	wsID     string
	ws       WorkspaceConfig
	id       string
	who      *identity
	key      string // Idempotency-Key
	instance string
	sent     bool
}

// contentPolicy lets pages load what this server has, and nothing else: no inline
// script or style, no frame, no form that leads away.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func (b *Backend) headers(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	// Not no-referrer: with it a browser sends forms with "Origin: null".
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
	if b.tls {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// ServeHTTP answers one request.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	c := &call{b: b, s: b.settings(), w: w, r: r, ctx: r.Context(), instance: "urn:yoi:request:" + policy.NewID("")}
	b.headers(w.Header())
	err := b.serve(c)
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	status := 200
	if err != nil {
		status = c.fail(err)
	}
	level := slog.LevelDebug
	if status >= 500 {
		level = slog.LevelWarn
	}
	if b.log.Enabled(c.ctx, level) {
		op, who := "", ""
		if c.route != nil {
			op = c.route.operation
		}
		if c.who != nil {
			who = c.who.name
		}
		b.log.Log(c.ctx, level, "request", "operation", op, "workspace", c.wsID, "id", c.id, "who", who,
			"status", status, "instance", c.instance, "took", time.Since(start), "error", err)
	}
}

func (b *Backend) serve(c *call) (err error) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				err = http.ErrAbortHandler
				return
			}
			b.log.Error("panic in a handler", "panic", v, "stack", string(debug.Stack()))
			err = refuse(policy.CodeInternal, "an unexpected error stopped the request")
		}
	}()
	if err := c.s.checkHost(c.r); err != nil {
		return err
	}
	if err := c.find(); err != nil {
		return err
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.admit(); err != nil {
		return err
	}
	return c.route.handle(c)
}

// checkHost refuses names that are not ours: a hostile site whose name resolves to
// this address would have a browser of ours talk to us in its name (DNS
// rebinding). A socket without origins is behind a proxy that sees to it.
func (s *settings) checkHost(r *http.Request) error {
	if len(s.hosts) == 0 {
		return nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if s.hosts[strings.ToLower(strings.Trim(host, "[]"))] {
		return nil
	}
	return refuse(CodeHostRefused, "the server does not answer under the name of the request")
}

// find finds the route and checks what is to be known before who asks.
func (c *call) find() (err error) {
	var p params
	c.route, p, err = match(c.b.routes, c.r.Method, c.r.URL.EscapedPath())
	if err != nil {
		return err
	}
	c.wsID, c.id = p.workspace, p.id
	if c.id != "" {
		if err := policy.CheckID("resource", c.id); err != nil {
			return err
		}
	}
	for name, values := range c.r.URL.Query() {
		if !c.route.takes(name) && !c.route.ui {
			return refuse(policy.CodeBadRequest, "there is no such parameter").With("parameter", name)
		}
		if len(values) > 1 {
			return refuse(policy.CodeBadRequest, "a parameter is given twice").With("parameter", name)
		}
	}
	if !c.safe() {
		if err := c.s.cross.Check(c.r); err != nil {
			return refuse(CodeOriginRefused, "the request comes from another site").Because(err)
		}
		c.r.Body = http.MaxBytesReader(c.w, c.r.Body, c.s.cfg.Limits.BodyBytes)
	}
	c.key, err = c.route.key(c.r.Header)
	return err
}

func (c *call) safe() bool { return c.r.Method == http.MethodGet || c.r.Method == http.MethodHead }

// admit decides whether who asks may do what is asked, and how often.
func (c *call) admit() error {
	who := remote(c.r)
	if c.who != nil {
		who = c.who.name
	}
	if !c.route.free {
		if wait, ok := c.s.requests.take(who); !ok {
			c.w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds())+1))
			return refuse(CodeRateLimited, "more requests than the server answers for one client")
		}
	}
	if c.route.open {
		return nil
	}
	if c.who == nil {
		return refuse(CodeAuthenticationRequired, "the request says not who asks")
	}
	if c.who.session && !c.safe() && !c.who.checkCSRF(c.r) {
		return refuse(CodeCSRFRefused, "the form's token is missing or of another session")
	}
	if c.wsID == "" {
		return nil
	}
	role, member := c.who.roles[c.wsID]
	ws, configured := c.s.cfg.Workspaces[c.wsID]
	if !member || !configured { // the same answer: a stranger learns nothing
		return refuse(CodeWorkspaceUnknown, "there is no workspace of that name for you")
	}
	if role < c.route.role {
		return refuse(CodeForbidden, "this takes the role %s, and yours is %s", c.route.role, role)
	}
	c.ws = ws
	return nil
}

// remote is the client's address; one for all clients of a socket.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "socket"
	}
	return host
}

// rt is the Runtime of the call's workspace.
func (c *call) rt() runtime.Service { return c.s.runtimes[c.ws.Runtime] }

// fail answers with a problem document, or a page that says the same.
func (c *call) fail(err error) int {
	p := c.b.problemOf(err)
	p.Instance = c.instance
	if c.sent {
		return p.Status // too late to say so: the stream just ends
	}
	if c.route != nil && c.route.ui || c.route == nil && wantsHTML(c.r) {
		return c.failPage(p)
	}
	if p.Code == CodeAuthenticationRequired {
		c.w.Header().Set("WWW-Authenticate", `Bearer realm="yoi"`)
	}
	if p.Code == policy.CodeMethodNotAllowed {
		c.w.Header().Set("Allow", p.Fields["allow"])
	}
	c.send(p.Status, problemType, p)
	return p.Status
}

// send sends a document.
func (c *call) send(status int, contentType string, v any) {
	b, err := api.Marshal(v)
	if err != nil {
		c.b.log.Error("an answer cannot be encoded", "error", err)
		status, b = 500, []byte(`{"code":"internal"}`)
	}
	c.write(status, contentType, b)
}

const writeTimeout = 30 * time.Second

func (c *call) write(status int, contentType string, body []byte) {
	c.sent = true
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's recorder has none
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body) // the client went away
}

// reply answers with a JSON document.
func (c *call) reply(status int, v any) error {
	c.send(status, "application/json", v)
	return nil
}
