package helper

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

func keepAlive(f *os.File) { runtime.KeepAlive(f) }

// Server serves a Helper on a SOCK_SEQPACKET unix socket.
type Server struct {
	Helper Helper
	// AllowUIDs are the peers admitted, by SO_PEERCRED.
	AllowUIDs []uint32
	Log       *slog.Logger
	// MaxConns and MaxRequests bound what one socket and one connection may have
	// under way; zero is 32 and 256.
	MaxConns, MaxRequests int

	mu    sync.Mutex
	conns map[*conn]bool
}

// Serve accepts connections until ctx ends or the listener fails, then waits
// for the requests under way.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	if s.MaxConns == 0 {
		s.MaxConns = 32
	}
	if s.MaxRequests == 0 {
		s.MaxRequests = 256
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, s.MaxConns)
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ECONNABORTED) {
				s.Log.Warn("accept failed", "error", err)
				continue
			}
			return policy.Errorf(policy.CodeUnavailable, "helper.serve", "the socket cannot be served any more").Because(err)
		}
		select {
		case slots <- struct{}{}:
		default:
			s.Log.Warn("connection refused: too many", "limit", s.MaxConns)
			c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			s.serveConn(ctx, c)
		})
	}
}

// peerUID is the uid of the process that connected, as the kernel recorded it
// at connect(2), unix(7).
func peerUID(c *net.UnixConn) (uint32, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := rc.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	return cred.Uid, nil
}

// linger waits a moment for the peer to close: closing first, with a request of
// the peer's unread, resets the connection and throws our answer away.
func linger(c *net.UnixConn) {
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	buf := make([]byte, maxMessage+1)
	for {
		_, files, err := receiveMessage(c, buf)
		if err != nil {
			return
		}
		closeAll(files)
	}
}

// conn is one client and its requests under way.
type conn struct {
	s *Server
	c *net.UnixConn
	// serving ends when the server is told to.
	serving context.Context
	write   sync.Mutex
	mu      sync.Mutex
	open    map[uint64]context.CancelFunc
	// sessions are those that it started and has not waited for.
	sessions map[policy.SessionID]bool
	// made are the allocations that it made: who else knows of them, before they are
	// kept?
	made []policy.AllocationID
	done chan struct{} // closed when nothing of it is left
}

func (s *Server) serveConn(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	uid, err := peerUID(c)
	if err != nil || !slices.Contains(s.AllowUIDs, uid) {
		s.Log.Warn("connection refused: wrong user", "uid", uid, "error", err)
		d := policy.Errorf(policy.CodePeerRefused, "helper.serve", "uid %d is not allowed on the helper's socket", uid)
		b, _ := json.Marshal(response{Version: ProtocolVersion, Error: d})
		_ = sendMessage(c, b, nil) // the peer may be gone already
		linger(c)
		return
	}
	serving := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.CloseRead() })
	defer stop()
	cn := &conn{s: s, c: c, serving: serving, open: make(map[uint64]context.CancelFunc), sessions: make(map[policy.SessionID]bool), done: make(chan struct{})}
	s.note(cn)
	defer s.forget(cn)
	defer cn.hangUp()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // a client that has gone has no request under way
	buf := make([]byte, maxMessage+1)
	for {
		b, files, err := receiveMessage(c, buf)
		if err != nil {
			if !errors.Is(err, errHangup) && ctx.Err() == nil {
				s.Log.Warn("connection ended", "uid", uid, "error", err)
				cn.reply(0, nil, nil, err)
			}
			return
		}
		var req request
		if err := decodeStrict(b, &req); err != nil {
			closeAll(files)
			cn.reply(0, nil, nil, policy.Errorf(policy.CodeBadRequest, "helper.request", "the message is malformed").Because(err))
			return // out of step with the peer: nothing after this can be trusted
		}
		if err := cn.start(ctx, &wg, req, files); err != nil {
			closeAll(files)
			cn.reply(req.ID, nil, nil, err)
		}
	}
}

// start runs a request in a goroutine of its own, or refuses it.
func (cn *conn) start(ctx context.Context, wg *sync.WaitGroup, req request, files []*os.File) error {
	if req.Version != ProtocolVersion {
		return policy.Errorf(policy.CodeUnsupportedVersion, "helper.request", "protocol version %d, not %d", req.Version, ProtocolVersion)
	}
	if req.Op == opCancel {
		closeAll(files)
		var body cancelBody
		if err := decodeBody(req.Body, &body); err != nil {
			return err
		}
		cn.mu.Lock()
		defer cn.mu.Unlock()
		if cancel := cn.open[body.ID]; cancel != nil {
			cancel()
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	cn.mu.Lock()
	_, taken := cn.open[req.ID]
	full := len(cn.open) >= cn.s.MaxRequests
	if !taken && !full {
		cn.open[req.ID] = cancel
	}
	cn.mu.Unlock()
	if taken || full {
		cancel()
		if full {
			return policy.Errorf(policy.CodeUnavailable, "helper.request", "more than %d requests are under way", cn.s.MaxRequests)
		}
		return policy.Errorf(policy.CodeBadRequest, "helper.request", "request id %d is under way already", req.ID)
	}
	wg.Go(func() {
		body, out, err := cn.handle(ctx, req, files)
		if cn.serving.Err() != nil && errors.Is(err, policy.CodeCanceled) {
			// Not the caller's doing, who may ask the next helper.
			err = policy.Errorf(policy.CodeUnavailable, "helper.serve", "yoi-helper is ending").Because(err)
		}
		closeAll(files)
		cn.mu.Lock()
		delete(cn.open, req.ID)
		cn.mu.Unlock()
		cancel()
		cn.reply(req.ID, body, out, err)
		closeAll(out)
	})
	return nil
}

// reply sends a response; a peer that has gone is no error.
func (cn *conn) reply(id uint64, body any, files []*os.File, err error) {
	resp := response{Version: ProtocolVersion, ID: id}
	if err != nil {
		resp.Error = policy.AsDiagnostic(err)
		cn.s.Log.Warn("request refused", "code", resp.Error.Code, "error", err)
	} else if body != nil {
		b, merr := json.Marshal(body)
		if merr != nil {
			resp.Error = policy.AsDiagnostic(merr)
		}
		resp.Body = b
	}
	if len(resp.Body) > maxInline {
		spill, serr := sealedMemfd("yoi-response", resp.Body)
		if serr != nil {
			resp.Error = policy.AsDiagnostic(serr)
		} else {
			defer spill.Close()
			files = append([]*os.File{spill}, files...)
			resp.Spill = true
		}
		resp.Body = nil
	}
	b, merr := json.Marshal(resp)
	if merr != nil {
		cn.s.Log.Error("response not encodable", "error", merr)
		return
	}
	cn.write.Lock()
	defer cn.write.Unlock()
	if werr := sendMessage(cn.c, b, files); werr != nil && !errors.Is(werr, unix.EPIPE) && !errors.Is(werr, net.ErrClosed) {
		cn.s.Log.Warn("response not sent", "error", werr)
	}
}

// handle decodes a request, calls the helper and returns the response's body
// and descriptors.
func (cn *conn) handle(ctx context.Context, req request, files []*os.File) (any, []*os.File, error) {
	if req.Spill {
		if len(files) == 0 {
			return nil, nil, policy.Errorf(policy.CodeBadRequest, "helper.request", "the spilled body is missing")
		}
		b, err := readSealed(files[0], maxBody)
		if err != nil {
			return nil, nil, err
		}
		req.Body, files = b, files[1:]
	}
	h := cn.s.Helper
	if req.Op != opLaunch && req.Op != opEnter && req.Op != opImageImport && len(files) > 0 {
		return nil, nil, policy.Errorf(policy.CodeBadRequest, "helper.request", "%q takes no descriptors", policy.Printable(req.Op))
	}
	switch req.Op {
	case opProbe:
		r, err := h.Probe(ctx)
		return r, nil, err
	case opLive:
		w, err := h.Live(ctx)
		return liveBody{w}, nil, err
	case opRecover:
		if err := cn.s.awaitLost(ctx, cn); err != nil {
			return nil, nil, err
		}
		r, err := h.Recover(ctx)
		return r, nil, err
	case opLaunch:
		return cn.launch(ctx, req.Body, files)
	case opMaterialize, opObjects, opAdopt:
		var body MaterializeRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		if req.Op == opObjects {
			n, err := h.HasNewObjects(ctx, body)
			return objectsBody{n}, nil, err
		}
		if req.Op == opAdopt {
			r, err := h.Adopt(ctx, body)
			return r, nil, err
		}
		r, err := h.Materialize(ctx, body)
		if err == nil {
			cn.mu.Lock()
			cn.made = append(cn.made, body.AllocationID)
			cn.mu.Unlock()
		}
		return r, nil, err
	case opPublish:
		var body PublishRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		r, err := h.Publish(ctx, body)
		return r, nil, err
	case opEvict:
		var body EvictRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		r, err := h.EvictCaches(ctx, body)
		return r, nil, err
	case opChanged:
		var body ChangedRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		r, err := h.Changed(ctx, body)
		return r, nil, err
	case opExchange:
		var body ExchangeRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		return nil, nil, h.Exchange(ctx, body)
	case opRemove:
		var body RemoveRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		return nil, nil, h.Remove(ctx, body)
	case opKeep, opUsage:
		var body allocationBody
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		if req.Op == opUsage {
			u, err := h.Usage(ctx, body.AllocationID)
			return u, nil, err
		}
		return nil, nil, h.Keep(ctx, body.AllocationID)
	case opImageImport, opImageRemove:
		return cn.image(ctx, req, files)
	case opWait, opSignal, opKill, opProcesses:
		return cn.worker(ctx, req)
	case opEnter:
		return cn.enter(ctx, req.Body, files)
	case opPause:
		var body PauseRequest
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		return nil, nil, h.Pause(ctx, body)
	case opMembers:
		var body workerBody
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		ps, err := h.Processes(ctx, body.WorkerID)
		return processesBody{ps}, nil, err
	case opTerminal:
		var body workerBody
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		f, err := h.Terminal(ctx, body.WorkerID)
		if err != nil {
			return nil, nil, err
		}
		return struct{}{}, []*os.File{f}, nil
	case opSessionWait, opSessionSignal:
		return cn.session(ctx, req)
	}
	return nil, nil, policy.Errorf(policy.CodeBadRequest, "helper.request", "%q is no operation", policy.Printable(req.Op))
}

func (cn *conn) worker(ctx context.Context, req request) (any, []*os.File, error) {
	var body workerBody
	if err := decodeBody(req.Body, &body); err != nil {
		return nil, nil, err
	}
	h := cn.s.Helper
	switch req.Op {
	case opProcesses:
		u, err := h.ProcessUsage(ctx, body.WorkerID)
		return u, nil, err
	case opWait:
		o, err := h.Wait(ctx, body.WorkerID)
		return o, nil, err
	case opSignal:
		return nil, nil, h.Signal(ctx, body.WorkerID, body.Signal)
	default:
		return nil, nil, h.Kill(ctx, body.WorkerID)
	}
}

// enter starts a session, which ends with the connection.
func (cn *conn) enter(ctx context.Context, b []byte, files []*os.File) (any, []*os.File, error) {
	var body enterBody
	if err := decodeBody(b, &body); err != nil {
		return nil, nil, err
	}
	var ef EnterFiles
	var err error
	if ef.Stdio, files, err = stdioOf(body.Stdio, files, 1); err != nil {
		return nil, nil, err
	}
	if ef.Filter, err = readSealed(files[0], maxFilter); err != nil {
		return nil, nil, err
	}
	e, err := cn.s.Helper.Enter(ctx, body.EnterRequest, ef)
	if err != nil {
		return nil, nil, err
	}
	cn.mu.Lock()
	cn.sessions[body.SessionID] = true
	cn.mu.Unlock()
	var out []*os.File
	if e.Terminal != nil {
		out = append(out, e.Terminal)
	}
	return enteredBody{StartedAt: e.StartedAt, Terminal: e.Terminal != nil}, out, nil
}

// stdioOf takes the given ones of the three off the descriptors, of which rest more
// must follow.
func stdioOf(given [3]bool, files []*os.File, rest int) (stdio [3]*os.File, left []*os.File, err error) {
	want := rest
	for _, g := range given {
		if g {
			want++
		}
	}
	if rest < 1 || len(files) != want {
		return stdio, nil, policy.Errorf(policy.CodeBadRequest, "helper.request", "%d descriptors came instead of %d", len(files), want)
	}
	for i, g := range given {
		if g {
			stdio[i], files = files[0], files[1:]
		}
	}
	return stdio, files, nil
}

func (cn *conn) session(ctx context.Context, req request) (any, []*os.File, error) {
	var body sessionBody
	if err := decodeBody(req.Body, &body); err != nil {
		return nil, nil, err
	}
	cn.mu.Lock()
	own := cn.sessions[body.SessionID]
	cn.mu.Unlock()
	if !own {
		return nil, nil, policy.Errorf(policy.CodeSessionUnknown, "helper.session", "the connection has no session %q", policy.Printable(string(body.SessionID)))
	}
	if req.Op == opSessionSignal {
		return nil, nil, cn.s.Helper.SignalSession(ctx, body.SessionID, body.Signal)
	}
	o, err := cn.s.Helper.WaitSession(ctx, body.SessionID)
	if err == nil {
		cn.mu.Lock()
		delete(cn.sessions, body.SessionID)
		cn.mu.Unlock()
	}
	return o, nil, err
}

// hangUp ends the sessions of a connection that is gone, and takes away what it
// made and did not have kept.
func (cn *conn) hangUp() {
	h, ok := cn.s.Helper.(interface {
		hangUp(policy.SessionID)
		abandon(policy.AllocationID)
	})
	if !ok {
		return
	}
	cn.mu.Lock()
	defer cn.mu.Unlock()
	for id := range cn.sessions {
		go h.hangUp(id)
	}
	for _, id := range cn.made {
		h.abandon(id)
	}
}

func (s *Server) note(cn *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = make(map[*conn]bool)
	}
	s.conns[cn] = true
}

func (s *Server) forget(cn *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, cn)
	close(cn.done)
}

// awaitLost waits for what is still done for clients that are gone: a recovery
// would find it half done, and take it for what somebody is at work on.
func (s *Server) awaitLost(ctx context.Context, asks *conn) error {
	s.mu.Lock()
	var lost []*conn
	for cn := range s.conns {
		if cn != asks && cn.lost() {
			lost = append(lost, cn)
		}
	}
	s.mu.Unlock()
	for _, cn := range lost {
		select {
		case <-cn.done:
		case <-ctx.Done():
			return policy.Errorf(policy.CodeCanceled, "helper.recover", "the recovery was canceled").Because(ctx.Err())
		}
	}
	return nil
}

// lost tells whether the peer has closed the connection, before anybody has read
// that.
func (cn *conn) lost() bool {
	rc, err := cn.c.SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	err = rc.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 0) // POLLHUP is always asked for
	})
	return err != nil || n > 0
}

func (cn *conn) launch(ctx context.Context, b []byte, files []*os.File) (any, []*os.File, error) {
	var body launchBody
	if err := decodeBody(b, &body); err != nil {
		return nil, nil, err
	}
	var lf LaunchFiles
	var err error
	rest := 1 + body.Direct
	for _, given := range []bool{len(body.Secrets) > 0, body.reachesOut(), body.Egress.hasSecrets()} {
		if given {
			rest++
		}
	}
	if body.Direct < 0 {
		rest = 0
	}
	if lf.Stdio, files, err = stdioOf(body.Stdio, files, rest); err != nil {
		return nil, nil, err
	}
	filter, err := readSealed(files[0], maxFilter)
	if err != nil {
		return nil, nil, err
	}
	lf.Filter, files = filter, files[1:]
	if len(body.Secrets) > 0 {
		lf.Secrets, files = files[0], files[1:]
	}
	if body.reachesOut() {
		lf.Outside, files = files[0], files[1:]
	}
	if body.Egress.hasSecrets() {
		lf.Headers, files = files[0], files[1:]
	}
	lf.Direct = files
	l, err := cn.s.Helper.Launch(ctx, body.LaunchRequest, lf)
	if err != nil {
		return nil, nil, err
	}
	out := []*os.File{l.Pidfd}
	if l.Terminal != nil {
		out = append(out, l.Terminal)
	}
	return launchedBody{StartedAt: l.StartedAt, IDBase: l.IDBase, ToolsDigest: l.ToolsDigest, Protections: l.Protections, Warnings: l.Warnings, Terminal: l.Terminal != nil}, out, nil
}
