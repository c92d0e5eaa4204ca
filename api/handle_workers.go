package api

import (
	"context"
	"math"
	"net/http"
	"strconv"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) listWorkers() error {
	f, err := c.query.filter()
	if err != nil {
		return err
	}
	list, err := c.svc.ListWorkers(c.ctx, f)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) spawnWorker() error {
	var req runtime.SpawnWorkerRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	if err := c.mergeKey(&req.IdempotencyKey); err != nil {
		return err
	}
	wk, err := c.svc.SpawnWorker(c.ctx, req)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/workers/"+string(wk.ID))
	return c.reply(http.StatusCreated, wk)
}

func (c *call) getWorker() error {
	wk, err := c.svc.GetWorker(c.ctx, policy.WorkerID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, wk)
}

func (c *call) getWorkerEgress() error {
	req := runtime.EgressRequest{Limit: int(c.query.number("limit", runtime.MaxDecisions))}
	if c.query.err != nil {
		return c.query.err
	}
	rep, err := c.svc.WorkerEgress(c.ctx, policy.WorkerID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, rep)
}

// getWorkerLogs streams output as it is: no encoding, no frames.
func (c *call) getWorkerLogs() error {
	req := runtime.LogsRequest{
		Stream: c.query.text("stream"),
		Offset: c.query.number("offset", math.MaxInt64),
		Limit:  c.query.number("limit", math.MaxInt64),
		Follow: c.query.flag("follow"),
	}
	switch req.Stream {
	case "", "stdout", "stderr":
	default:
		c.query.fail("stream", "stdout or stderr")
	}
	if c.query.err != nil {
		return c.query.err
	}
	out := c.stream("application/octet-stream", req.Follow)
	next, err := c.svc.WorkerLogs(c.ctx, policy.WorkerID(c.id), req, out)
	if err != nil {
		return err
	}
	out.end()
	c.w.Header().Set(OffsetTrailer, strconv.FormatInt(next, 10))
	return nil
}

func (c *call) signalWorker() error {
	var req runtime.SignalRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	if err := c.svc.SignalWorker(c.ctx, policy.WorkerID(c.id), req); err != nil {
		return err
	}
	return c.done()
}

func (c *call) stopWorker() error {
	var req runtime.StopRequest
	if err := c.body(&req, true); err != nil {
		return err
	}
	wk, err := c.svc.StopWorker(c.ctx, policy.WorkerID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, wk)
}

func (c *call) waitWorker() error {
	wk, err := c.svc.WaitWorker(c.ctx, policy.WorkerID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, wk)
}

func (c *call) listWorkerProcesses() error {
	list, err := c.svc.WorkerProcesses(c.ctx, policy.WorkerID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) pauseWorker() error  { return c.setPaused(c.svc.PauseWorker) }
func (c *call) resumeWorker() error { return c.setPaused(c.svc.ResumeWorker) }

func (c *call) setPaused(do func(context.Context, policy.WorkerID) (runtime.Worker, error)) error {
	if err := c.noBody(); err != nil {
		return err
	}
	wk, err := do(c.ctx, policy.WorkerID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, wk)
}
