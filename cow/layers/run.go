package layers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opRun = "layers.run"

// IDs is the first host uid and gid of image files that root keeps: right below
// the default pool of Workers' ranges, above those of systemd's containers. Only
// layers on disk and the program itself ever have these ids.
const (
	IDs     = 0x70000000
	IDCount = 65536
)

// Program finds yoi-layers: $YOI_LAYERS, or beside the running program.
func Program() string {
	if p := os.Getenv("YOI_LAYERS"); p != "" {
		return p
	}
	self, err := os.Executable()
	if err != nil {
		return "yoi-layers"
	}
	return filepath.Join(filepath.Dir(self), "yoi-layers")
}

// Config is how the program is started.
type Config struct {
	Program string
	// Privileged maps the ids from IDs on; else the program runs as the caller.
	Privileged bool
	// Archive is read by OpImport. Lock and Store are the protocol's descriptors.
	Archive, Lock, Store *os.File
}

// Calls are made while the program works. Either may be nil for OpRemove.
type Calls struct {
	// Planned is called with what is to be made, and returns what of it is whole
	// already. Nothing is made before it returns.
	Planned  func(Plan) (reuse []string, err error)
	Progress func(Progress)
}

// Run starts the program for one request and returns when it has ended.
func Run(ctx context.Context, c Config, req Request, calls Calls) (Done, error) {
	p, err := start(ctx, c)
	if err != nil {
		return Done{}, err
	}
	done, err := p.converse(req, calls)
	p.stdin.Close() // which ends it, whatever it does
	if err != nil {
		p.cancel()
	}
	werr := p.cmd.Wait()
	switch {
	case err == nil: // its last word was said; the end of its input may have been faster than its own
		return done, nil
	case ctx.Err() != nil:
		return Done{}, policy.Errorf(policy.CodeCanceled, opRun, "the work on the image was canceled").Because(ctx.Err())
	case err != nil && !errors.Is(err, errNoAnswer):
		return Done{}, err
	}
	return Done{}, policy.Errorf(policy.CodeImageProgramFailed, opRun, "the image program ended without an answer").
		Because(errors.Join(err, werr, errors.New(p.stderr.String())))
}

var errNoAnswer = errors.New("no answer")

type process struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	stderr limited
}

// limited keeps the beginning of what a program says about its end.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if room := 8<<10 - l.Len(); room > 0 {
		l.Buffer.Write(b[:min(len(b), room)])
	}
	return len(b), nil
}

func start(ctx context.Context, c Config) (*process, error) {
	missing := func(err error) error {
		return policy.Errorf(policy.CodeImageProgramFailed, opRun, "the image program yoi-layers cannot be started").Because(err)
	}
	// By descriptor, since the ids that it gets may not walk to where it lies.
	program, err := os.Open(c.Program)
	if err != nil {
		return nil, missing(err)
	}
	defer program.Close()
	// Above the descriptors that the child's end up at.
	high, err := unix.FcntlInt(program.Fd(), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		return nil, missing(err)
	}
	defer unix.Close(high)
	ctx, cancel := context.WithCancel(ctx)
	p := &process{cancel: cancel}
	p.cmd = exec.CommandContext(ctx, "/proc/self/fd/"+strconv.Itoa(high))
	p.cmd.Args = []string{"yoi-layers"}
	p.cmd.Env = []string{"PATH=", "HOME=/", "TMPDIR=/tmp", "GOTRACEBACK=single"}
	p.cmd.Dir = "/"
	p.cmd.Stderr = &p.stderr
	archive := c.Archive
	if archive == nil {
		if archive, err = os.Open(os.DevNull); err != nil {
			cancel()
			return nil, missing(err)
		}
		defer archive.Close()
	}
	p.cmd.ExtraFiles = []*os.File{archive, c.Lock}
	if c.Store != nil {
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, c.Store)
	}
	p.cmd.SysProcAttr = attributes(c.Privileged)
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		cancel()
		return nil, missing(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, missing(err)
	}
	p.stdout = bufio.NewScanner(out)
	p.stdout.Buffer(nil, 1<<20)
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, missing(err)
	}
	return p, nil
}

// attributes puts the program into namespaces of its own from its first
// instruction on.
func attributes(privileged bool) *syscall.SysProcAttr {
	uid, gid, n := os.Geteuid(), os.Getegid(), 1
	if privileged {
		uid, gid, n = IDs, IDs, IDCount
	}
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: n}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: n}},
		GidMappingsEnableSetgroups: privileged,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !privileged},
	}
}

// converse sends the request and follows the answers.
func (p *process) converse(req Request, calls Calls) (Done, error) {
	if err := p.say(req); err != nil {
		return Done{}, err
	}
	for p.stdout.Scan() {
		var a Answer
		if err := json.Unmarshal(p.stdout.Bytes(), &a); err != nil {
			return Done{}, errors.Join(errNoAnswer, err)
		}
		switch {
		case a.Error != nil:
			return Done{}, a.Error
		case a.Done != nil:
			return *a.Done, nil
		case a.Progress != nil && calls.Progress != nil:
			calls.Progress(*a.Progress)
		case a.Plan != nil && calls.Planned != nil:
			if err := CheckLayers(a.Plan.Layers); err != nil {
				return Done{}, err
			}
			reuse, err := calls.Planned(*a.Plan)
			if err != nil {
				return Done{}, err
			}
			if err := p.say(Go{Reuse: reuse}); err != nil {
				return Done{}, err
			}
		}
	}
	return Done{}, errors.Join(errNoAnswer, p.stdout.Err())
}

func (p *process) say(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = p.stdin.Write(append(b, '\n'))
	}
	if err != nil {
		return errors.Join(errNoAnswer, err)
	}
	return nil
}
