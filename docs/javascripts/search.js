// A text of an error and an option are searched as they are pasted: the search would take
// their colons, stars, tildes and leading hyphens for operators, and find nothing.
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...others) {
  const asks = message !== null && typeof message === "object" && message.type === 2
  if (asks && typeof message.data === "string") {
    message = { ...message, data: message.data.replace(/[:^~*+]|(?<!\S)-+/g, " ") }
  }
  return post.call(this, message, ...others)
}
