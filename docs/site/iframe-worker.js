// Search on pages opened from disk: browsers start no Worker of a file there, so its script runs in a hidden frame that has the same interface.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      const script = frame.contentDocument.createElement("script")
      script.src = url
      this.loaded = new Promise(done => { script.onload = done })
      frame.contentDocument.body.appendChild(script)
      this.inside = inside
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
