// Package authority holds what a Worker is given, and nothing beyond it, to its
// promises: secrets whose values are nowhere but with the Worker that they are for,
// a root with just the named tools, and configuration bundles that nobody changes.
//
// As package attack does, it has hostile Workers try; here they are shell scripts,
// since what they try takes no more.
package authority
