package helper

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// Remote is a Helper behind a socket. It dials again when the connection was
// lost, so that a helper may restart under a running daemon; requests that were
// under way fail with CodeUnavailable and are the caller's to repeat.
type Remote struct {
	path string

	mu   sync.Mutex
	link *link
}

// Dial returns a Remote for the socket at path. The first connection is made
// by the first request.
func Dial(path string) *Remote { return &Remote{path: path} }

// link is one connection and its requests under way.
type link struct {
	c     *net.UnixConn
	write sync.Mutex

	mu   sync.Mutex
	next uint64
	wait map[uint64]chan reply
	err  error
	done chan struct{} // closed when err is final
}

type reply struct {
	resp  response
	files []*os.File
	err   error
}

func (r *Remote) connect(ctx context.Context) (*link, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link != nil && r.link.broken() == nil {
		return r.link, nil
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", r.path)
	if err != nil {
		return nil, policy.Errorf(policy.CodeUnavailable, "helper.dial", "yoi-helper cannot be reached").Because(err)
	}
	l := &link{c: c.(*net.UnixConn), wait: make(map[uint64]chan reply), done: make(chan struct{})}
	go l.read()
	r.link = l
	return l, nil
}

func (l *link) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// read hands responses to their waiters until the connection ends.
func (l *link) read() {
	buf := make([]byte, maxMessage+1)
	for {
		b, files, err := receiveMessage(l.c, buf)
		var rp reply
		if err == nil {
			rp.files = files
			if err = json.Unmarshal(b, &rp.resp); err == nil && rp.resp.ID == 0 && rp.resp.Error != nil {
				err = rp.resp.Error // the helper refused the connection itself
			}
		}
		l.mu.Lock()
		if err != nil {
			closeAll(files)
			l.fail(err)
			l.mu.Unlock()
			l.c.Close()
			close(l.done)
			return
		}
		ch := l.wait[rp.resp.ID]
		delete(l.wait, rp.resp.ID)
		l.mu.Unlock()
		if ch == nil {
			closeAll(files) // its caller has gone
			continue
		}
		ch <- rp
	}
}

// fail ends every request under way. The caller holds l.mu.
func (l *link) fail(err error) {
	var d *policy.Diagnostic
	if !errors.As(err, &d) {
		d = policy.Errorf(policy.CodeUnavailable, "helper.call", "the connection to yoi-helper was lost").Because(err)
	}
	l.err = d
	for id, ch := range l.wait {
		delete(l.wait, id)
		ch <- reply{err: d}
	}
}

// call sends a request and waits for its answer. The returned files are the
// caller's.
func (r *Remote) call(ctx context.Context, op string, body any, files []*os.File, out any) ([]*os.File, error) {
	l, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	req := request{Version: ProtocolVersion, Op: op}
	if body != nil {
		if req.Body, err = json.Marshal(body); err != nil {
			return nil, policy.AsDiagnostic(err)
		}
	}
	if len(req.Body) > maxBody {
		return nil, policy.Errorf(policy.CodeRequestTooLarge, "helper.call", "a request of %d bytes is too large", len(req.Body))
	}
	if len(req.Body) > maxInline {
		spill, err := sealedMemfd("yoi-request", req.Body)
		if err != nil {
			return nil, policy.AsDiagnostic(err)
		}
		defer spill.Close()
		files = append([]*os.File{spill}, files...)
		req.Body, req.Spill = nil, true
	}
	ch, id, err := l.send(req, files)
	if err != nil {
		return nil, err
	}
	select {
	case rp := <-ch:
		return finish(rp, out)
	case <-ctx.Done():
		l.cancel(id)
		// The helper answers a cancelled request too; what it made is undone there.
		rp := <-ch
		got, err := finish(rp, out)
		if err == nil {
			return got, nil
		}
		return nil, err
	}
}

func (l *link) send(req request, files []*os.File) (chan reply, uint64, error) {
	ch := make(chan reply, 1)
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return nil, 0, l.err
	}
	l.next++
	req.ID = l.next
	l.wait[req.ID] = ch
	l.mu.Unlock()
	b, err := json.Marshal(req)
	if err != nil {
		return nil, 0, policy.AsDiagnostic(err)
	}
	l.write.Lock()
	err = sendMessage(l.c, b, files)
	l.write.Unlock()
	if err == nil {
		return ch, req.ID, nil
	}
	l.mu.Lock()
	delete(l.wait, req.ID)
	l.mu.Unlock()
	var d *policy.Diagnostic
	if errors.As(err, &d) {
		return nil, 0, d
	}
	// The helper has closed its end. If it said why, the reader is about to know.
	_ = l.c.SetReadDeadline(time.Now().Add(time.Second))
	<-l.done
	return nil, 0, l.broken()
}

func (l *link) cancel(id uint64) {
	body, _ := json.Marshal(cancelBody{ID: id})
	b, _ := json.Marshal(request{Version: ProtocolVersion, Op: opCancel, Body: body})
	l.write.Lock()
	defer l.write.Unlock()
	_ = sendMessage(l.c, b, nil) // a lost connection ends the request anyway
}

func finish(rp reply, out any) ([]*os.File, error) {
	err := rp.err
	if err == nil && rp.resp.Error != nil {
		err = rp.resp.Error
	}
	files := rp.files
	if err == nil && rp.resp.Spill {
		if len(files) == 0 {
			err = policy.Errorf(policy.CodeInternal, "helper.call", "the helper's answer lacks its body")
		} else {
			rp.resp.Body, err = readSealed(files[0], maxBody)
			files[0].Close()
			files = files[1:]
		}
	}
	if err == nil && out != nil {
		if uerr := json.Unmarshal(rp.resp.Body, out); uerr != nil {
			err = policy.Errorf(policy.CodeInternal, "helper.call", "the helper's answer cannot be read").Because(uerr)
		}
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

// callPlain is call for answers without descriptors.
func (r *Remote) callPlain(ctx context.Context, op string, body, out any) error {
	files, err := r.call(ctx, op, body, nil, out)
	closeAll(files)
	return err
}

func (r *Remote) Probe(ctx context.Context) (res ProbeResult, err error) {
	err = r.callPlain(ctx, opProbe, nil, &res)
	return res, err
}

func (r *Remote) Materialize(ctx context.Context, req MaterializeRequest) (res MaterializeResult, err error) {
	err = r.callPlain(ctx, opMaterialize, req, &res)
	return res, err
}

func (r *Remote) Adopt(ctx context.Context, req MaterializeRequest) (res MaterializeResult, err error) {
	err = r.callPlain(ctx, opAdopt, req, &res)
	return res, err
}

func (r *Remote) Keep(ctx context.Context, id policy.AllocationID) error {
	return r.callPlain(ctx, opKeep, allocationBody{id}, nil)
}

func (r *Remote) Wait(ctx context.Context, id policy.WorkerID) (o nsexec.Outcome, err error) {
	err = r.callPlain(ctx, opWait, workerBody{WorkerID: id}, &o)
	return o, err
}

func (r *Remote) Signal(ctx context.Context, id policy.WorkerID, signal int) error {
	return r.callPlain(ctx, opSignal, workerBody{WorkerID: id, Signal: signal}, nil)
}

func (r *Remote) Kill(ctx context.Context, id policy.WorkerID) error {
	return r.callPlain(ctx, opKill, workerBody{WorkerID: id}, nil)
}

func (r *Remote) Live(ctx context.Context) ([]policy.WorkerID, error) {
	var body liveBody
	err := r.callPlain(ctx, opLive, nil, &body)
	return body.Workers, err
}

func (r *Remote) HasNewObjects(ctx context.Context, req MaterializeRequest) (bool, error) {
	var body objectsBody
	err := r.callPlain(ctx, opObjects, req, &body)
	return body.New, err
}

func (r *Remote) Usage(ctx context.Context, id policy.AllocationID) (res UsageResult, err error) {
	err = r.callPlain(ctx, opUsage, allocationBody{id}, &res)
	return res, err
}

func (r *Remote) ProcessUsage(ctx context.Context, id policy.WorkerID) (res ProcessUsage, err error) {
	err = r.callPlain(ctx, opProcesses, workerBody{WorkerID: id}, &res)
	return res, err
}

func (r *Remote) Publish(ctx context.Context, req PublishRequest) (res PublishResult, err error) {
	err = r.callPlain(ctx, opPublish, req, &res)
	return res, err
}

func (r *Remote) EvictCaches(ctx context.Context, req EvictRequest) (res EvictResult, err error) {
	err = r.callPlain(ctx, opEvict, req, &res)
	return res, err
}

func (r *Remote) Changed(ctx context.Context, req ChangedRequest) (res ChangedResult, err error) {
	err = r.callPlain(ctx, opChanged, req, &res)
	return res, err
}

func (r *Remote) Exchange(ctx context.Context, req ExchangeRequest) error {
	return r.callPlain(ctx, opExchange, req, nil)
}

func (r *Remote) Remove(ctx context.Context, req RemoveRequest) error {
	return r.callPlain(ctx, opRemove, req, nil)
}

func (r *Remote) Recover(ctx context.Context) (res RecoverResult, err error) {
	err = r.callPlain(ctx, opRecover, nil, &res)
	return res, err
}

func (r *Remote) Launch(ctx context.Context, req LaunchRequest, lf LaunchFiles) (*Launched, error) {
	if err := checkSecretFiles(req, lf); err != nil {
		return nil, err
	}
	body := launchBody{LaunchRequest: req, Direct: len(lf.Direct)}
	var files []*os.File
	for i, f := range lf.Stdio {
		if f != nil {
			body.Stdio[i] = true
			files = append(files, f)
		}
	}
	filter, err := sealedMemfd("yoi-filter", lf.Filter)
	if err != nil {
		return nil, policy.AsDiagnostic(err)
	}
	defer filter.Close()
	files = append(files, filter)
	if len(req.Secrets) > 0 {
		files = append(files, lf.Secrets)
	}
	if req.reachesOut() {
		outside := lf.Outside
		if outside == nil {
			if outside, err = os.Open("/proc/self/ns/net"); err != nil {
				return nil, policy.AsDiagnostic(err)
			}
			defer outside.Close()
		}
		files = append(files, outside)
	}
	if req.Egress.hasSecrets() {
		files = append(files, lf.Headers)
	}
	files = append(files, lf.Direct...)
	var res launchedBody
	got, err := r.call(ctx, opLaunch, body, files, &res)
	if err != nil {
		return nil, err
	}
	want := 1
	if res.Terminal {
		want = 2
	}
	if len(got) != want {
		closeAll(got)
		return nil, policy.Errorf(policy.CodeInternal, "helper.launch", "the helper's answer carries %d descriptors, not %d", len(got), want)
	}
	l := &Launched{Pidfd: got[0], StartedAt: res.StartedAt, IDBase: res.IDBase, ToolsDigest: res.ToolsDigest, Protections: res.Protections, Warnings: res.Warnings}
	if res.Terminal {
		l.Terminal = got[1]
	}
	return l, nil
}

func (r *Remote) Enter(ctx context.Context, req EnterRequest, ef EnterFiles) (*Entered, error) {
	body := enterBody{EnterRequest: req}
	var files []*os.File
	for i, f := range ef.Stdio {
		if f != nil {
			body.Stdio[i] = true
			files = append(files, f)
		}
	}
	filter, err := sealedMemfd("yoi-filter", ef.Filter)
	if err != nil {
		return nil, policy.AsDiagnostic(err)
	}
	defer filter.Close()
	var res enteredBody
	got, err := r.call(ctx, opEnter, body, append(files, filter), &res)
	if err != nil {
		return nil, err
	}
	e := &Entered{StartedAt: res.StartedAt}
	if res.Terminal && len(got) == 1 {
		e.Terminal = got[0]
		return e, nil
	}
	if res.Terminal || len(got) != 0 {
		closeAll(got)
		return nil, policy.Errorf(policy.CodeInternal, "helper.enter", "the helper's answer carries %d descriptors", len(got))
	}
	return e, nil
}

func (r *Remote) Terminal(ctx context.Context, id policy.WorkerID) (*os.File, error) {
	got, err := r.call(ctx, opTerminal, workerBody{WorkerID: id}, nil, nil)
	if err != nil {
		return nil, err
	}
	if len(got) != 1 {
		closeAll(got)
		return nil, policy.Errorf(policy.CodeInternal, "helper.terminal", "the helper's answer carries %d descriptors", len(got))
	}
	return got[0], nil
}

func (r *Remote) Processes(ctx context.Context, id policy.WorkerID) ([]Process, error) {
	var body processesBody
	err := r.callPlain(ctx, opMembers, workerBody{WorkerID: id}, &body)
	return body.Processes, err
}

func (r *Remote) Pause(ctx context.Context, req PauseRequest) error {
	return r.callPlain(ctx, opPause, req, nil)
}

func (r *Remote) WaitSession(ctx context.Context, id policy.SessionID) (o SessionOutcome, err error) {
	err = r.callPlain(ctx, opSessionWait, sessionBody{SessionID: id}, &o)
	return o, err
}

func (r *Remote) SignalSession(ctx context.Context, id policy.SessionID, signal int) error {
	return r.callPlain(ctx, opSessionSignal, sessionBody{SessionID: id, Signal: signal}, nil)
}

// Close ends the connection. Workers that were launched without DieWithParent
// go on.
func (r *Remote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == nil {
		return nil
	}
	if err := r.link.c.Close(); !errors.Is(err, net.ErrClosed) { // the helper may have gone first
		return err
	}
	return nil
}

var _ Helper = (*Remote)(nil)
