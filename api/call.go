package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// call is one request on its way through a handler.
type call struct {
	srv   *Server
	svc   runtime.Service
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context
	route *route
	// id is the path's {id}, already checked.
	id    string
	query *query
	key   string // Idempotency-Key
	out   *stream
	// patient calls may wait for ever for a client to read: a person's terminal.
	patient bool
	sent    bool // a whole answer has been sent, or tried to
}

// body decodes the request's document into dst. An optional one may be absent.
func (c *call) body(dst any, optional bool) error {
	if optional && c.r.ContentLength == 0 {
		return nil
	}
	if err := checkContentType(c.r.Header); err != nil {
		return err
	}
	b, err := c.readBody()
	if err != nil {
		return err
	}
	if len(b) == 0 && optional {
		return nil
	}
	return decodeStrict(b, dst)
}

func checkContentType(h http.Header) error {
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset, hasCharset := params["charset"]
	switch {
	case err != nil || media != jsonType || len(h.Values("Content-Type")) != 1:
		return badRequest("the Content-Type is not application/json")
	case len(params) > 1 || (len(params) == 1 && !hasCharset) || (hasCharset && !strings.EqualFold(charset, "utf-8")):
		return badRequest("application/json is sent as UTF-8 and takes no parameters")
	case h.Get("Content-Encoding") != "":
		return badRequest("a Content-Encoding is not accepted")
	}
	return nil
}

// readBody reads at most MaxBody bytes in at most BodyTimeout. At the body's end
// net/http lifts the deadline, to watch for a client that goes away; without an
// end it bounds also what net/http drains.
func (c *call) readBody() ([]byte, error) {
	most := cmp.Or(c.route.most, c.srv.opt.MaxBody)
	tooLarge := func() error {
		return policy.Errorf(policy.CodeRequestTooLarge, "api.decode", "the body is larger than %d bytes", most)
	}
	if c.r.ContentLength > most {
		return nil, tooLarge()
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(c.srv.opt.BodyTimeout)) // a test's recorder has none
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, most))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		return b, nil
	case errors.As(err, &over):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.w.Header().Set("Connection", "close")
		return nil, badRequest("the body did not arrive in time").Because(err)
	}
	return nil, badRequest("the body did not arrive whole").Because(err)
}

// noBody refuses a body where none has a meaning.
func (c *call) noBody() error {
	if c.r.ContentLength != 0 {
		return badRequest("this operation takes no body")
	}
	return nil
}

// reply sends v with status.
func (c *call) reply(status int, v any) error {
	b, err := Marshal(v)
	if err != nil {
		return err
	}
	return c.send(status, jsonType, append(b, '\n'))
}

// done answers with 204.
func (c *call) done() error {
	c.sent = true
	c.deadline()
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) send(status int, contentType string, b []byte) error {
	c.sent = true
	c.deadline()
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(status)
	_, err := c.w.Write(b)
	return err
}

// deadline gives the next write its time: a client that does not read must not
// hold a connection for ever.
func (c *call) deadline() {
	if c.patient {
		return
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.srv.opt.WriteTimeout))
}

// fail sends the problem document of err, or, when the answer has begun,
// leaves it to the stream's trailer.
func (c *call) fail(err error, instance string) Problem {
	p := ProblemOf(err)
	p.Instance = instance
	if c.sent || (c.out != nil && c.out.finish(p)) {
		return p
	}
	b, merr := Marshal(p)
	if merr != nil { // strings and a number always encode
		panic(merr)
	}
	if allow := p.Fields["allow"]; p.Code == policy.CodeMethodNotAllowed {
		c.w.Header().Set("Allow", allow)
	}
	_ = c.send(p.Status, problemType, append(b, '\n')) // the client has gone: nobody to tell
	return p
}
