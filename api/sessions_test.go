package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// hastyService is done before its input is.
type hastyService struct {
	servicetest.Service
	err error
}

func (s *hastyService) ExecWorker(_ context.Context, _ policy.WorkerID, _ runtime.ExecRequest, st runtime.SessionStreams) (runtime.Session, error) {
	st.Started()
	_, _ = st.Stdin.Read(make([]byte, 1)) // the client is writing
	return runtime.Session{ExitCode: 7}, s.err
}

// A client that still writes gets the end of a session, not that of a connection.
func TestSessionEndsBeforeItsInput(t *testing.T) {
	lost := policy.Errorf(policy.CodeWorkerUnknown, "runtime.exec", "it is gone").With("id", "wk-1").Because(errors.New("/srv/x"))
	for _, want := range []error{nil, lost} {
		socket, _ := serve(t, Options{Service: &hastyService{err: want}})
		c := NewClient(socket)
		input := bytes.Repeat([]byte("x"), 1<<20)
		for i := range 300 {
			v, err := c.ExecWorker(t.Context(), "wk-1", runtime.ExecRequest{Command: []string{"true"}},
				runtime.SessionStreams{Stdin: bytes.NewReader(input), Stdout: io.Discard, Stderr: io.Discard})
			if want == nil {
				if err != nil || v.ExitCode != 7 {
					t.Fatalf("call %d: %+v, %v", i, v, err)
				}
				continue
			}
			if d := policy.AsDiagnostic(err); !errors.Is(err, policy.CodeWorkerUnknown) || d.Fields["id"] != "wk-1" || d.Cause != nil {
				t.Fatalf("call %d: %+v", i, err)
			}
		}
	}
}
