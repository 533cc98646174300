// Browsers start no worker from a file on disk. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      inside.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.#load(inside, next)), Promise.resolve())
      this.inside = inside
      this.frame = frame
      this.ready = this.#load(inside, url)
    }

    #load(inside, url) {
      return new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = done
        script.onerror = failed
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
