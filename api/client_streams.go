package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// maxLine bounds one JSON line of a stream.
const maxLine = 1 << 20

// WorkerLogs copies a log to w. It returns the next offset, also when the
// connection is lost on the way: what w was given is counted.
func (c *Client) WorkerLogs(ctx context.Context, id policy.WorkerID, req runtime.LogsRequest, w io.Writer) (int64, error) {
	path, err := item("worker", workers, id, "/logs")
	if err != nil {
		return req.Offset, err
	}
	q := url.Values{}
	setText(q, "stream", req.Stream)
	setNumber(q, "offset", req.Offset)
	setNumber(q, "limit", req.Limit)
	setFlag(q, "follow", req.Follow)
	resp, err := c.send(ctx, request{method: "GET", path: path, query: q, accept: "application/octet-stream"})
	if err != nil {
		return req.Offset, err
	}
	defer resp.Body.Close()
	n, err := copyBody(ctx, resp, w)
	next := req.Offset + n
	if err != nil {
		return next, err
	}
	// The server's word goes before the count: an offset past the end is moved.
	if o, err := strconv.ParseInt(resp.Trailer.Get(OffsetTrailer), 10, 64); err == nil {
		next = o
	}
	return next, nil
}

// copyBody copies a streamed answer to its end; a problem in its trailer is the
// error.
func copyBody(ctx context.Context, resp *http.Response, w io.Writer) (int64, error) {
	out := &sink{w: w}
	n, err := io.Copy(out, resp.Body)
	switch {
	case out.err != nil:
		return n, policy.Errorf(policy.CodeCanceled, "api.client", "the output cannot be written").Because(out.err)
	case err != nil:
		return n, transportError(ctx, err)
	}
	return n, trailerProblem(resp)
}

// ExportWorkspace copies a workspace's results to w.
func (c *Client) ExportWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ExportRequest, w io.Writer) (int64, error) {
	path, err := item("allocation", workspaces, id, "/export")
	if err != nil {
		return 0, err
	}
	q := url.Values{}
	setText(q, "format", string(req.Format))
	setText(q, "repository_id", string(req.RepositoryID))
	setNumber(q, "max_bytes", req.MaxBytes)
	return c.download(ctx, path, q, w)
}

// ExportCollected copies a bundle to w.
func (c *Client) ExportCollected(ctx context.Context, id policy.RepositoryID, req runtime.CollectedRequest, w io.Writer) (int64, error) {
	path, err := item("repository", repositories, id, "/collected/export")
	if err != nil {
		return 0, err
	}
	q := url.Values{}
	setText(q, "name", req.Name)
	return c.download(ctx, path, q, w)
}

func (c *Client) download(ctx context.Context, path string, q url.Values, w io.Writer) (int64, error) {
	resp, err := c.send(ctx, request{method: "GET", path: path, query: q, accept: "application/octet-stream"})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return copyBody(ctx, resp, w)
}

// sink remembers that it was the writer that failed, not the daemon.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(b []byte) (n int, err error) {
	n, err = s.w.Write(b)
	if err != nil {
		s.err = err
	}
	return n, err
}

// Events implements runtime.Service.
func (c *Client) Events(ctx context.Context, req runtime.EventsRequest, yield func(runtime.Event) bool) error {
	q := url.Values{}
	setNumber(q, "after", req.After)
	setText(q, "owner", req.Owner)
	setText(q, "allocation_id", string(req.AllocationID))
	setFlag(q, "follow", req.Follow)
	return readLines(ctx, c, "/v1/events", q, yield)
}

// LedgerRecords implements runtime.Service.
func (c *Client) LedgerRecords(ctx context.Context, req runtime.LedgerRequest, yield func(runtime.LedgerRecord) bool) error {
	q := url.Values{}
	setText(q, "owner", req.Owner)
	setFlag(q, "held", req.Held)
	return readLines(ctx, c, "/v1/ledger/records", q, yield)
}

func readLines[T any](ctx context.Context, c *Client, path string, q url.Values, yield func(T) bool) error {
	resp, err := c.send(ctx, request{method: "GET", path: path, query: q, accept: linesType})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			if lines.Err() != nil { // the connection broke in mid-line
				return transportError(ctx, lines.Err())
			}
			return badAnswer(resp, err)
		}
		if !yield(v) {
			return nil
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return badAnswer(resp, err)
	} else if err != nil {
		return transportError(ctx, err)
	}
	return trailerProblem(resp)
}

// trailerProblem returns the failure that ended a stream, once it is read.
func trailerProblem(resp *http.Response) error {
	t := resp.Trailer.Get(ProblemTrailer)
	if t == "" {
		return nil
	}
	return readProblem(resp, []byte(t))
}

func readProblem(resp *http.Response, b []byte) error {
	d, err := parseProblem(b)
	if err != nil {
		return badAnswer(resp, err)
	}
	return d
}
