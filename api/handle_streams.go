package api

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

const (
	linesType  = "application/jsonl"
	eventsType = "text/event-stream"
)

// streamEvents sends JSON lines, or server-sent events to who asks for them.
func (c *call) streamEvents() error {
	req := runtime.EventsRequest{
		After:        c.query.number("after", math.MaxInt64),
		Owner:        c.query.id("owner"),
		AllocationID: policy.AllocationID(c.query.id("allocation_id")),
		Follow:       c.query.flag("follow"),
	}
	if c.query.err != nil {
		return c.query.err
	}
	sse := WantsEvents(c.r.Header)
	if last := c.r.Header.Get("Last-Event-ID"); sse && last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return badRequest("Last-Event-ID is not an event's number")
		}
		req.After = n
	}
	encode, contentType := line[runtime.Event], linesType
	if sse {
		encode, contentType = serverSent, eventsType
	}
	return emit(c, contentType, req.Follow, encode, func(yield func(runtime.Event) bool) error {
		return c.svc.Events(c.ctx, req, yield)
	})
}

func (c *call) getLedgerRecords() error {
	req := runtime.LedgerRequest{Owner: c.query.id("owner"), Held: c.query.flag("held")}
	if c.query.err != nil {
		return c.query.err
	}
	return emit(c, linesType, false, line[runtime.LedgerRecord], func(yield func(runtime.LedgerRecord) bool) error {
		return c.svc.LedgerRecords(c.ctx, req, yield)
	})
}

// emit streams what produce yields. Without follow the writes are gathered.
func emit[T any](c *call, contentType string, follow bool, encode func(T) ([]byte, error), produce func(func(T) bool) error) error {
	out := c.stream(contentType, follow)
	size := 32 << 10
	if follow {
		size = 0 // bufio's least; each event is flushed
	}
	buf := bufio.NewWriterSize(out, size)
	var failed error
	err := produce(func(v T) bool {
		b, err := encode(v)
		if err == nil {
			_, err = buf.Write(b)
		}
		if err == nil && follow {
			err = buf.Flush()
		}
		failed = err
		return err == nil
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		err = buf.Flush()
	}
	if err != nil {
		return err
	}
	out.end()
	return nil
}

func line[T any](v T) ([]byte, error) {
	b, err := Marshal(v)
	return append(b, '\n'), err
}

// serverSent is an event of the HTML standard's event stream format. JSON has
// no bare line break, so data is one line.
func serverSent(e runtime.Event) ([]byte, error) {
	b, err := Marshal(e)
	var out bytes.Buffer
	fmt.Fprintf(&out, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, policy.Printable(e.Kind), b)
	return out.Bytes(), err
}

// WantsEvents reads Accept: server-sent events go to who names them, here and from other
// servers that hold the same boundary.
func WantsEvents(h http.Header) bool {
	for _, a := range strings.Split(strings.Join(h.Values("Accept"), ","), ",") {
		if media, _, err := mime.ParseMediaType(a); err == nil && media == eventsType {
			return true
		}
	}
	return false
}

func (c *call) verifyLedger() error {
	report, err := c.svc.LedgerVerify(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, report)
}

func (c *call) replayLedger() error {
	if err := c.noBody(); err != nil {
		return err
	}
	report, err := c.svc.LedgerReplay(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, report)
}
