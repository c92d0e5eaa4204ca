package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) getInfo() error {
	info, err := c.svc.Info(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, info)
}

func (c *call) getDoctor() error {
	report, err := c.svc.Doctor(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, report)
}

// metricsType is the text format's, as Prometheus negotiates it.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

func (c *call) getMetrics() error {
	text, err := c.svc.Metrics(c.ctx)
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, metricsType, text)
}

func (c *call) getStatus() error {
	status, err := c.svc.Status(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, status)
}

func (c *call) collectGarbage() error {
	var req runtime.GCRequest
	if err := c.body(&req, true); err != nil {
		return err
	}
	report, err := c.svc.GC(c.ctx, req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, report)
}

func (c *call) getOpenAPI() error { return c.send(http.StatusOK, jsonType, OpenAPI()) }
